"""The training of the base on a model of toy size: it learns, resumes, and counts its own time."""

import json
import time

import pytest
import torch
from specstream_mlx.convert.demo_model import packing, tasks, train_base
from specstream_mlx.convert.demo_model.muon import Muon, orthogonalized
from specstream_mlx.convert.demo_model.tokenizer import train_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from specstream_mlx import UserError


def toy_config(vocab_size, eos_token_id, pad_token_id):
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
    )


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(vocab_size=600, items=300)


@pytest.fixture
def toy(monkeypatch, tokenizer):
    """Runs of a toy model on short rows, with nothing compiled."""
    monkeypatch.setattr(packing, "ROW_TOKENS", (256, 512))
    monkeypatch.setattr(packing, "LONGEST", 512)
    monkeypatch.setattr(train_base, "LONGEST", 512)
    monkeypatch.setattr(train_base, "EVALUATE_STEPS", 10)
    monkeypatch.setattr(train_base, "base_config", toy_config)

    def saved(directory, seed):
        tokenizer.save_pretrained(directory)
        return tokenizer

    monkeypatch.setattr(train_base, "save_tokenizer", saved)
    with torch.compiler.set_stance("force_eager"):
        yield


def train(output, seconds):
    train_base.train(output, seconds / 60, 512, 3e-3, 0.35, seed=0)
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_learns_resumes_and_leaves_a_model(toy, tmp_path):
    log = train(tmp_path, 4)
    steps = [line for line in log if "loss" in line]
    assert steps[-1]["loss"] < steps[0]["loss"]
    first = log[-1]["step"]
    assert set(log[-1]["typed_dev"]) == set(tasks.TASKS)
    again = train(tmp_path, 6)
    assert again[: len(log)] == log
    assert again[-1]["step"] > first
    weights = LlamaForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in checkpoint["model"].items())
    assert (tmp_path / "before_decay.pt").exists()


def test_rows_that_no_item_found_room_in_teach_nothing(toy, tokenizer):
    model = train_base.build(tokenizer, 0)
    run = train_base.Run(model, train_base.optimizers_of(model))
    rows = packing.pack([[], []], 256, tokenizer.pad_token_id)
    assert run.advance(rows, 1e-3, 0.4) == 0.0
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_time_in_which_a_run_was_stopped_is_not_counted(toy, tokenizer, monkeypatch):
    model = train_base.build(tokenizer, 0)
    run = train_base.Run(model, train_base.optimizers_of(model))
    rows = packing.cycle(tokenizer, 0, 512, 0)[0]
    loss_of = train_base.weighted_loss

    def stopped(*arguments):
        time.sleep(1)
        return loss_of(*arguments)

    monkeypatch.setattr(train_base, "weighted_loss", stopped)
    started = time.process_time()
    run.advance(rows, 1e-3, 0.1)
    used = (time.process_time() - started) / torch.get_num_threads()
    assert 0 < run.spent <= used < 1


def test_steps_that_long_rows_do_not_fit_into_are_refused(tmp_path):
    with pytest.raises(UserError, match="--step-tokens is 3000, expected a multiple of 2048"):
        train_base.train(tmp_path, 1, 3000, 1e-3, 0.3, 0)


def test_prompts_weigh_what_they_are_told(toy, tokenizer):
    model = train_base.build(tokenizer, 0)
    rows = packing.cycle(tokenizer, 0, 512, 0)[0]
    losses = [
        train_base.weighted_loss(model, rows.tokens, rows.document, weight.float())
        for weight in (rows.target, rows.prompt, rows.target + 0.5 * rows.prompt)
    ]
    targets, prompts = rows.target.sum(), 0.5 * rows.prompt.sum()
    expected = (losses[0] * targets + losses[1] * prompts) / (targets + prompts)
    assert losses[2].item() == pytest.approx(expected.item(), rel=1e-3)


def test_items_of_a_row_do_not_see_each_other(toy, tokenizer):
    model = train_base.build(tokenizer, 0)
    first, second = ([7, 8, 9, 10], 2), ([11, 12, 13], 1)
    together = packing.pack([[first, second]], 8, tokenizer.pad_token_id)
    alone = packing.pack([[second]], 8, tokenizer.pad_token_id)
    found = train_base.logits_of(model, together.tokens, together.document)[0, 4:7]
    expected = train_base.logits_of(model, alone.tokens, alone.document)[0, :3]
    assert torch.allclose(found, expected, atol=1e-5)


def test_typed_texts_are_scored_by_the_accepted_answer_that_is_likeliest(
    toy, tokenizer, monkeypatch
):
    model = train_base.build(tokenizer, 0)
    right = tasks.Item("sql", "x", "yes", ())
    ids, prompt = packing.encode(tokenizer, right)
    wrong = tasks.Item("sql", "x", "no way", ())
    monkeypatch.setattr(train_base, "typed_dev", lambda task, count: [[wrong, right]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = packing.pack([[(ids, prompt)]], len(ids), tokenizer.pad_token_id)
    for _ in range(60):
        train_base.weighted_loss(model, rows.tokens, rows.document, rows.target.float()).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = train_base.evaluate(model, tokenizer)["sql"]
    assert found["exact"] == 1.0
    assert found["loss"] < 0.1


def test_the_schedule_warms_up_stays_and_falls_to_zero():
    factors = [train_base.learning_rate_factor(s, t, 100, 0.4) for s, t in ((29, 1), (59, 50))]
    assert factors == [0.5, 1.0]
    late = [train_base.learning_rate_factor(900, spent, 100, 0.4) for spent in (80, 100, 101)]
    assert late == [0.5, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (24, 24)])
def test_muon_is_that_of_torch_but_for_its_precision(shape):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(ours.detach().clone())
    start = ours.detach().clone()
    muons = (
        Muon([ours], lr=0.1),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(4):
        gradient = torch.randn(shape)
        for parameter, muon in zip((ours, theirs), muons, strict=True):
            parameter.grad = gradient.clone()
            muon.step()
    moved = (ours - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved


def test_orthogonalized_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 64, 32)))
    assert ((values > 0.6) & (values < 1.3)).all()
