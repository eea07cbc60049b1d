"""The shapes that the study trains beside those of the package do what they say."""

import json
from types import SimpleNamespace

import pytest
import typer
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from specstream_mlx.convert.pytorch.attention import Scoring, stream_positions  # noqa: E402
from specstream_mlx.convert.to_mlx.base import convert_base  # noqa: E402
from torch_tiny import tiny_llama  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from benchmarks.studies import stream_shapes  # noqa: E402
from benchmarks.studies.stream_shapes import SHAPES, Shape, WithExtras  # noqa: E402
from specstream_mlx.config import StreamConfig  # noqa: E402

TOKENS = torch.tensor([[5, 9, 3, 7, 11, 2, 8]])


def model_of(shape):
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=4,
        )
    )  # fmt: skip
    config = StreamConfig(
        "lossless", 2, 16, 3, num_streams=2, stream_mlp="base+adapter", stream_adapter_rank=2,
        pruner_rank=0,
    )  # fmt: skip
    return WithExtras(base, config, shape)


def trunk_of(model, tokens=TOKENS):
    positions, valid = stream_positions(torch.tensor([3]), torch.tensor([6]))
    return model.trunk(tokens, positions, valid)


def test_the_next_token_reaches_the_streams_and_nothing_else():
    plain, model = model_of(Shape()), model_of(Shape(next_rank=4))
    model.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(trunk_of(plain).streams, trunk_of(model).streams)  # zero at the start
    torch.nn.init.normal_(model.next.up.weight)
    other = TOKENS.clone()
    other[0, 6] = 1  # what comes behind the last position with streams
    one, two = trunk_of(model), trunk_of(model, other)
    assert torch.equal(one.main[:, :6], two.main[:, :6])
    assert torch.equal(one.streams[:, :-1], two.streams[:, :-1])
    assert not torch.allclose(one.streams[:, -1], two.streams[:, -1], atol=1e-3)


def test_only_streams_see_the_prefix():
    plain, model = model_of(Shape()), model_of(Shape(prefix=3))
    model.load_state_dict(plain.state_dict(), strict=False)
    before, after = trunk_of(plain), trunk_of(model)
    assert torch.equal(before.main, after.main)
    assert not torch.allclose(before.streams, after.streams, atol=1e-3)
    after.streams.square().sum().backward()
    assert all(one.grad.abs().max() > 0 for one in model.prefix.values())


def test_a_hidden_prefix_changes_nothing(monkeypatch):
    """Its columns come first, and no angle and no other column is taken for another."""
    plain, model = model_of(Shape()), model_of(Shape(prefix=3))
    model.load_state_dict(plain.state_dict(), strict=False)
    expected, hides = trunk_of(plain).streams, Scoring.hides

    def without_prefix(self, positions, length):
        hidden = hides(self, positions, length)
        if length > TOKENS.shape[1]:
            hidden[..., :3] = True
        return hidden

    monkeypatch.setattr(Scoring, "hides", without_prefix)
    assert torch.allclose(trunk_of(model).streams, expected, atol=1e-5)


def test_only_streams_pass_their_lora():
    plain, model = model_of(Shape()), model_of(Shape(lora_rank=2))
    names = {key.replace(".linear.", "."): key for key in model.state_dict()}
    values = {names[key]: value for key, value in plain.state_dict().items()}
    model.load_state_dict(values, strict=False)
    assert len(model.loras) == 2 * 7  # linear layers above the seed
    before = trunk_of(plain)
    assert torch.equal(before.streams, trunk_of(model).streams)  # zero at the start
    for lora in model.loras:
        torch.nn.init.normal_(lora.up.weight)
    after = trunk_of(model)
    assert torch.equal(before.main, after.main)
    assert not torch.allclose(before.streams, after.streams, atol=1e-3)


def test_shapes_that_the_package_runs_are_timed(tmp_path):
    """And the others are left out; the same command again trains nothing anew."""
    torch.manual_seed(0)
    base = tiny_llama(vocab=VOCAB_SIZE)
    base.config.max_position_embeddings = 4096  # typed texts are long in bytes
    base.save_pretrained(tmp_path / "expanded")
    tiny_tokenizer().save_pretrained(tmp_path / "expanded")
    convert_base(tmp_path / "expanded", tmp_path / "base")
    for name in ("streams", "streams-typed"):
        line = json.dumps({"prompt": "two moons", "completion": " over the hill by night"})
        (tmp_path / f"{name}.jsonl").write_text(20 * (line + "\n"))
    app = typer.Typer()
    app.command()(stream_shapes.main)
    options = [
        "--work", str(tmp_path), "--output", str(tmp_path / "results"),
        "--shapes", "identity; LoRA 8", "--steps", "2", "--timed", "1", "--rounds", "1",
    ]  # fmt: skip
    for _ in range(2):
        result = CliRunner().invoke(app, options)
        assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "results" / "stream-shapes.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["identity", "LoRA 8"]
    (speed,) = found["speeds"]
    assert speed["name"] == "identity" and speed["together"] > 0 and speed["alone"] > 0


def test_every_shape_is_one_that_streams_can_have(tmp_path):
    sizes = LlamaConfig(hidden_size=16, num_hidden_layers=12, num_attention_heads=4)
    (tmp_path / "config.json").write_text(json.dumps(sizes.to_dict()))
    for name, shape in SHAPES.items():
        config = shape.config(SimpleNamespace(config=sizes), tmp_path)
        assert StreamConfig.from_dict(config.to_dict()) == config, name
