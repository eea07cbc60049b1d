"""What is written for mlx_lm runs here with only the import changed, and writes the same text."""

import contextlib
import inspect
import io
from types import SimpleNamespace

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache
from random_models import speculative_model
from tiny_models import (
    VOCAB_SIZE,
    stream_adapter_directory,
    tiny_llama_directory,
    tiny_tokenizer,
    tokenizer_ending,
)

import specstream_mlx
from specstream_mlx import UserError, batch_generate, generate, load, stream_generate
from specstream_mlx.prompts import chat_prompt, encode_prompt

TEMPLATE = "Correct this: {text}"
MESSAGES = [
    {"role": "user", "content": "is the meeting at noon"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "send the report"},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("interface")
    base = tiny_llama_directory(
        root / "base", seed=3, tie_word_embeddings=False, num_attention_heads=2
    )
    write_ascii_only(base)
    stream_adapter_directory(root / "streams", base, prompt_template=TEMPLATE)
    return root


def write_ascii_only(base):
    """Let tokens that are no ASCII text be unlikely: mlx_lm is slow to decode half characters."""
    weights, words = mx.load(str(base / "model.safetensors")), tiny_tokenizer()
    ascii_only = [words.decode([token]).isascii() for token in range(VOCAB_SIZE)]
    weights["lm_head.weight"] *= mx.array(ascii_only)[:, None]
    mx.save_safetensors(str(base / "model.safetensors"), weights, {"format": "mlx"})


@pytest.fixture(scope="module")
def pair(directory):
    return load(str(directory / "base"), adapter_path=str(directory / "streams"))


def parameters(*functions):
    found = {}
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                found.setdefault(name, parameter)
    return found


@pytest.mark.parametrize(
    ("ours", "theirs", "further"),
    [
        (load, mlx_lm.load, []),
        (generate, mlx_lm.generate, []),
        (stream_generate, mlx_lm.stream_generate, [generate_step, speculative_generate_step]),
        (batch_generate, mlx_lm.batch_generate, [BatchGenerator.__init__]),
    ],
)
def test_signatures(ours, theirs, further):
    found, expected = parameters(ours), parameters(theirs, *further)
    expected.pop("stop_tokens", None)  # mlx_lm's batch_generate gives this one itself
    assert set(expected) <= set(found)
    positional = list(parameters(theirs))
    assert list(found)[: len(positional)] == positional
    for name in expected:
        if name in positional:
            assert found[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert found[name].default in (expected[name].default,), name


SCRIPT = """
import mlx.core as mx
from mlx_lm import batch_generate, generate, load, stream_generate
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from specstream_mlx import keyed_sampler

model, tokenizer, config = load(REPO, return_config=True, lazy=True)
text = [config["vocab_size"]]

# a chat over turns on one cache, in two ways
for kwargs in ({}, {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 30}):
    cache = make_prompt_cache(model)
    for turn, question in enumerate(["the meeting", "please send the report", "noon?"]):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        processors = make_logits_processors(repetition_penalty=1.3, logit_bias={5: 1.5})
        answer = generate(
            model, tokenizer, prompt, verbose=True, max_tokens=16, prompt_cache=cache,
            logits_processors=processors, sampler=keyed_sampler(turn, 0.8), **kwargs,
        )
        text += [answer, len(prompt)]
    text.append(sorted({layer.offset for layer in cache}))
assert can_trim_prompt_cache(cache) and trim_prompt_cache(cache, 4) == 4
save_prompt_cache(str(FILE), cache)
cache = load_prompt_cache(str(FILE))
text.append(generate(model, tokenizer, prompt="and now", prompt_cache=cache, max_tokens=10))

# leaving early, then going on
cache = make_prompt_cache(model)
for number, response in enumerate(
    stream_generate(model, tokenizer, "the table", max_tokens=-1, prompt_cache=cache)
):
    text.append((response.token, response.from_draft and None, response.finish_reason))
    if number == 6:
        break
del response
text.append(generate(model, tokenizer, mx.array([9, 4, 17]), prompt_cache=cache, max_tokens=9))

# arguments
progress = []
text.append(
    generate(
        model, tokenizer, prompt=list(range(20, 60)), max_tokens=8, prefill_step_size=16,
        prompt_progress_callback=lambda *read: progress.append(read),
        max_kv_size=64, sampler=make_sampler(temp=0.0), num_draft_tokens=3,
    )
)
text.append(progress)

# a batch
prompts = [tokenizer.encode(words) for words in ("the numbers", "x", "in the table before")]
response = batch_generate(
    model, tokenizer, prompts, max_tokens=[20, 4, 11], return_token_ids=True,
    return_logprobs=True, completion_batch_size=2, prefill_batch_size=1, verbose=True,
    logits_processors=make_logits_processors(presence_penalty=0.7),
)
text += [*response.texts, *response.token_ids, [len(row) for row in response.logprobs]]
sums = [sum(row) for row in response.logprobs]
first = batch_generate(model, tokenizer, prompts, return_prompt_caches=True, max_tokens=24)
again = batch_generate(
    model, tokenizer, prompts[::-1], prompt_caches=first.caches, max_tokens=[8, 3, 12]
)
text += [*first.texts, *again.texts]

# another end token, and a field of the model's configuration
model, tokenizer = load(
    REPO, tokenizer_config={"eos_token": "<|pad|>"}, model_config={"rope_theta": 50.0}
)
text.append(generate(model, tokenizer, "the report", max_tokens=20))
"""


def run(script, **names):
    """What a script prints, without figures of speed, and what it leaves in its names."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(script, names)
    figures = ("Prompt:", "Generation:", "Peak memory:", "Accepted length:")
    figures += tuple(f"[batch_generate] {name}" for name in figures)
    lines = printed.getvalue().split("\n")
    printed = [line for line in lines if not line.startswith(figures)]
    return printed, names["text"], names["sums"]


def test_the_same_script(directory, tmp_path):
    script = SCRIPT.lstrip()
    names = {"REPO": str(directory / "base"), "FILE": tmp_path / "cache.safetensors"}
    changed = script.replace("\nfrom mlx_lm import", "\nfrom specstream_mlx import")
    changed = changed.replace("from mlx_lm import", "from specstream_mlx import", 1)
    assert "from specstream_mlx import" in changed and "from mlx_lm import" not in changed
    *expected, sums = run(script, **names)
    assert run(changed, **names) == (*expected, pytest.approx(sums, rel=1e-4))


def test_mlx_lms_functions_decode_our_model(pair):
    """Plainly, in batches too, and with a draft model."""
    model, tokenizer = pair
    prompt = tokenizer.encode("the meeting is")
    expected = generate(model, tokenizer, prompt, max_tokens=20)
    assert mlx_lm.generate(model, tokenizer, prompt, max_tokens=20) == expected
    drafted = mlx_lm.generate(model, tokenizer, prompt, max_tokens=20, draft_model=model)
    assert drafted == expected
    batch = mlx_lm.batch_generate(model, tokenizer, [prompt, prompt[:1]], max_tokens=20)
    assert batch.texts[0] == expected


def test_a_model_that_chooses_its_caches():
    """One with sliding windows: mlx_lm's caches for it are taken too, and can go on in mlx_lm."""
    model = speculative_model("sliding windows", seed=1)
    tokenizer = tokenizer_ending()
    caches = {name: make_prompt_cache(model) for name in ("ours", "theirs", "mixed")}
    assert type(caches["ours"][1]).__name__ == "RotatingKVCache"
    found = {name: [] for name in caches}

    def tokens(module, prompt, cache):
        steps = module.stream_generate(model, tokenizer, prompt, 12, prompt_cache=cache)
        return [response.token for response in steps]

    for turn, prompt in enumerate(([5, 9, 33], [7] * 9, [1, 2])):
        found["ours"].append(tokens(specstream_mlx, prompt, caches["ours"]))
        found["theirs"].append(tokens(mlx_lm, prompt, caches["theirs"]))
        module = specstream_mlx if turn < 2 else mlx_lm
        found["mixed"].append(tokens(module, prompt, caches["mixed"]))
    assert found["ours"] == found["theirs"] == found["mixed"]
    with pytest.raises(UserError, match="layer 1 of prompt_cache has a RotatingKVCache that drop"):
        generate(model, tokenizer, [5], prompt_cache=caches["theirs"])


def test_what_is_templated(pair):
    _, tokenizer = pair
    raw = "see you at noon"
    once = chat_prompt(tokenizer, raw, TEMPLATE)
    assert encode_prompt(tokenizer, raw) == tokenizer.encode(raw)
    assert encode_prompt(tokenizer, raw, TEMPLATE) == once != chat_prompt(tokenizer, raw)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    for prompt in (text, ids, tuple(ids), mx.array(ids), np.array(ids), MESSAGES):
        assert encode_prompt(tokenizer, prompt, TEMPLATE) == ids
    begun = [*MESSAGES, {"role": "assistant", "content": "it was"}]
    assert tokenizer.decode(encode_prompt(tokenizer, begun)).endswith("it was")
    noting = SimpleNamespace(bos_token="<|user|>", encode=lambda _, **options: options)
    for raw, adds in (("<|user|>hello", False), ("hello", True)):  # no second bos
        assert encode_prompt(noting, raw) == {"add_special_tokens": adds}
    bare = tiny_tokenizer()
    bare.chat_template = None
    with pytest.raises(UserError, match="the tokenizer has no chat template, expected text or"):
        generate(pair[0], bare, MESSAGES)


def test_public_names_are_listed_before_they_are_imported():
    assert set(specstream_mlx.__all__) < set(dir(specstream_mlx))
