"""A draft model is made of a base's first layers, learns, and drafts for the base in MLX."""

import json
import shutil

import pytest
import torch
from command_line import run
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch import draft_model_trainer
from specstream_mlx.convert.pytorch.draft_model_trainer import DraftModelSettings, first_layers
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.to_mlx.base import convert_base

from specstream_mlx import load, stream_generate
from specstream_mlx.config import UserError

PROMPT = "check team noon"


@pytest.fixture
def settings(tied, data, tmp_path):
    small = {"model": tied, "data": data, "batch_size": 8, "log_every": 1, "bf16": False}
    small |= {"num_layers": 1, "output": tmp_path / "out"}
    return lambda **values: DraftModelSettings(**{**small, **values})


def test_what_is_cut_off_is_the_end(tied):
    whole, cut = load_base(tied), first_layers(tied, 2)
    states = whole(torch.tensor([[3, 1, 4]]), output_hidden_states=True).hidden_states
    found = cut(torch.tensor([[3, 1, 4]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[1], states[1])
    torch.testing.assert_close(found[2], whole.model.norm(states[2]))  # the last one is behind it


def test_it_learns_and_drafts_and_the_text_stays(settings, data, tied, tied_mlx, tmp_path):
    chosen = settings(iters=40, learning_rate=2e-2, valid_data=data)
    path = draft_model_trainer.train_draft_model(chosen)
    lines = [json.loads(line) for line in (chosen.output / "log.jsonl").read_text().splitlines()]
    assert lines[39]["loss"] < 0.5 * lines[0]["loss"]
    assert lines[-1]["held_out"]["main"] > 0.5
    table = "model.embed_tokens.weight"
    written = load_file(path / "model.safetensors")
    assert torch.equal(written[table], load_file(tied / "model.safetensors")[table])
    assert lines[-1]["held_out"]["parameters"] == sum(
        tensor.numel() for name, tensor in written.items() if name != table
    )

    convert_base(path, tmp_path / "draft")
    (draft, _), (model, tokenizer) = load(tmp_path / "draft"), load(tied_mlx)
    assert len(draft.layers) == 1
    drafting = {"draft_model": draft, "tree_size": 4}
    found = list(stream_generate(model, tokenizer, PROMPT, 12, **drafting))
    plain = list(stream_generate(model, tokenizer, PROMPT, 12, speculation=False))
    assert [one.token for one in found] == [one.token for one in plain]
    assert found[-1].drafted_tokens > 0


def test_what_the_base_generates_by_is_copied_as_it_is(settings, tied, tmp_path):
    """Also what transformers would not write, such as a temperature without sampling."""
    base = shutil.copytree(tied, tmp_path / "base")
    by = {"temperature": 0.7, "top_p": 0.9, "eos_token_id": 2}
    (base / "generation_config.json").write_text(json.dumps(by))
    path = draft_model_trainer.train_draft_model(settings(model=base, iters=1))
    assert json.loads((path / "generation_config.json").read_text()) == by


def test_resuming_equals_not_stopping(settings, tmp_path):
    class StoppedError(Exception):
        pass

    def stop(now, _):
        if now == 7:
            raise StoppedError

    chosen = settings(iters=12, save_every=5)
    with pytest.raises(StoppedError):
        draft_model_trainer.train_draft_model(chosen, stop)
    with pytest.raises(UserError, match="of an earlier run, expected --resume"):
        draft_model_trainer.train_draft_model(chosen)
    chosen.resume = True
    found = load_file(draft_model_trainer.train_draft_model(chosen) / "model.safetensors")
    shutil.rmtree(chosen.output)
    whole = draft_model_trainer.train_draft_model(settings(iters=12))
    expected = load_file(whole / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_refusals(settings, tied_mlx, tmp_path):
    quantized = tmp_path / "quantized"
    run("convert", "--model", tied_mlx, "--mlx-path", quantized, "--bits", 4, "--group-size", 32)
    for fields, sentence in (
        ({"num_layers": 3}, "num_layers is 3, expected less than the 3 of the base"),
        ({"dtype": "bfloat16", "bf16": None}, "dtype is 'bfloat16', expected 'float32'"),
        ({"model": quantized}, "is quantized, expected weights that can be trained"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
    ):
        with pytest.raises(UserError, match=sentence):
            draft_model_trainer.train_draft_model(settings(**fields))
        assert not (tmp_path / "out" / "model").exists()
    other = tmp_path / "out" / "model"
    other.mkdir(parents=True)
    (other / "letters.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds letters\.txt, expected only a model's files"):
        draft_model_trainer.train_draft_model(settings(resume=True))
