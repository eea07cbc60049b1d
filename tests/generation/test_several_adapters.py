"""One base and many adapters from Python: side by side, in a batch, and from asyncio."""

import asyncio
import gc
import time

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import UserError, astream_generate, batch_generate, generate, load
from specstream_mlx.engine.several_adapters import Gathered
from specstream_mlx.engine.step import Decoder

NAMES = ["shared1", "shared2", "lossless"]
TEXT = "please send the report"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    base = tiny_llama_directory(folder / "base")
    for seed, name in enumerate(NAMES):
        shared = {"mode": "shared", "lora_rank": 4, "lora_scale": 2.0} if seed < 2 else {}
        template = {"prompt_template": f"{name}: {{text}}"} if seed == 1 else {}
        stream_adapter_directory(folder / name, base, seed=seed, **shared, **template)
    return folder


@pytest.fixture
def pair(folder):
    return load(folder / "base")


@pytest.fixture(scope="module")
def texts(folder):
    found = {}
    for name in (None, *NAMES):
        model, tokenizer = load(folder / "base", adapter_path=name and folder / name)
        found[name] = generate(model, tokenizer, TEXT, max_tokens=12)
    assert len(set(found.values())) == 3  # lossless streams write what the base does
    return found


def write(pair, **arguments):
    return generate(*pair, TEXT, max_tokens=12, **arguments)


def test_other_adapters_share_the_weights_and_change_nothing(pair, folder, texts):
    model, tokenizer = pair
    weights = dict(tree_flatten(model.model.parameters()))
    others = {name: model.with_adapter(folder / name) for name in NAMES}
    model.swap_adapter(folder / "shared1")
    assert write(pair) == texts["shared1"]
    for name, other in others.items():
        assert model.with_adapter(folder / name) is other
        assert other.adapter.path.name == name
        assert write((other, tokenizer)) == texts[name]
    model.swap_adapter(folder / "shared2")
    assert write(pair) == texts["shared2"]
    model.swap_adapter(None)
    assert write(pair) == texts[None]
    after = dict(tree_flatten(model.model.parameters()))
    assert after.keys() == weights.keys()
    assert all(after[key] is weights[key] for key in weights)  # no copy, and none was changed
    with pytest.raises(UserError, match="none"):
        model.with_adapter("none")
    bare = model.with_adapter(None)
    assert bare is model.with_adapter(None) is not model
    assert (bare.adapter, bare.streams, bare.model) == (None, None, model.base)
    with pytest.raises(UserError, match=r"called on a model of with_adapter\(..\)"):
        other.swap_adapter(None)


def test_a_batch_has_an_adapter_for_each_prompt(pair, folder, texts, monkeypatch):
    model, tokenizer = pair
    sizes, gather = [], Gathered.gather
    monkeypatch.setattr(
        Gathered, "gather", lambda self, every: (sizes.append(len(every)), gather(self, every))
    )
    names = ["shared1", None, "shared2", "lossless", "shared1"]
    adapters = [name and folder / name for name in names]
    found = batch_generate(model, tokenizer, [TEXT] * 5, max_tokens=12, adapters=adapters)
    assert found.texts == [texts[name] for name in names]
    assert max(sizes) == 5  # all in one pass, the base too
    # What does not fit comes later, in one pass again.
    scaled = {"mode": "shared", "lora_rank": 4, "lora_scale": 3.0}
    other = stream_adapter_directory(folder / "scaled", folder / "base", seed=7, **scaled)
    expected = write((model.with_adapter(other), tokenizer))
    adapters = [adapters[0], other] * 2
    found = batch_generate(model, tokenizer, [TEXT] * 4, max_tokens=12, adapters=adapters)
    assert found.texts == [texts["shared1"], expected] * 2
    steps = found.stats.generation_steps
    found = batch_generate(model, tokenizer, [TEXT] * 2, max_tokens=12, adapters=adapters[:2])
    assert found.stats.generation_steps == steps
    with pytest.raises(UserError, match="2 prompts and 1 adapters"):
        batch_generate(model, tokenizer, [TEXT, TEXT], adapters=[None])


def test_adapters_that_have_written_take_the_bytes_of_their_files_alone(folder):
    """No copy of the head's rows stays, of those that they draft, nor any tensor of a batch."""
    fields = {"mode": "shared", "lora_rank": 4, "draft_vocabulary": 40}
    names = [
        stream_adapter_directory(folder / f"drafting{seed}", folder / "base", seed=seed, **fields)
        for seed in range(3)
    ]
    pair = load(folder / "base")

    def write(adapters):
        prompts = [TEXT] * len(adapters)
        return batch_generate(*pair, prompts, max_tokens=12, adapters=adapters).texts

    def active():
        gc.collect()
        return mx.get_active_memory()

    write([None])
    before = active()
    for name in names:
        pair[0].with_adapter(name)
    held = active() - before
    files = [file for name in names for file in name.glob("*.safetensors")]
    assert held <= 1.1 * sum(file.stat().st_size for file in files)
    assert [write([name]) for name in names] == [[text] for text in write(names)]
    one_copy = 40 * pair[0].config["hidden_size"] * 4
    assert active() - before < held + one_copy


async def write_one(pair, count, **arguments):
    """Read the first ``count`` responses of a generation, or all of fewer."""
    found = []
    async for response in astream_generate(*pair, TEXT, **arguments):
        found.append(response.text)
        if len(found) == count:
            break
    return "".join(found)


@pytest.mark.parametrize("cancels", [False, True])
def test_whoever_leaves_ends_the_work(cancels, pair, texts, monkeypatch):
    calls, next_token = [], Decoder.next_token
    monkeypatch.setattr(
        Decoder, "next_token", lambda *given: (calls.append(1), next_token(*given))[1]
    )

    async def main():
        one = write_one(pair, 99 if cancels else 5, max_tokens=-1, speculation=False)
        task = asyncio.create_task(one)
        while len(calls) < 5:
            await asyncio.sleep(0)
        if cancels:
            task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError if cancels else str)

        # Others' turns in the same thread come after the end of the first one.
        several = await asyncio.gather(*(write_one(pair, 99, max_tokens=12) for _ in range(3)))
        assert several == [texts[None]] * 3

    asyncio.run(main())
    before = len(calls)
    time.sleep(0.2)
    assert len(calls) == before < 60
