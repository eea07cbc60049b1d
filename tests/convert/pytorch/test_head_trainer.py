"""Draft heads of other methods: what is trained is what MLX runs, it learns, and is published."""

import json
import re

import mlx.core as mx
import numpy as np
import pytest
import torch
from command_line import refusal, run
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch import head_trainer, losses
from specstream_mlx.convert.pytorch.attention import softcapped
from specstream_mlx.convert.pytorch.frozen_base import FrozenBase
from specstream_mlx.convert.pytorch.head_files import write_head
from specstream_mlx.convert.pytorch.head_losses import (
    DraftTokens,
    SummedCrossEntropy,
    count_right,
    head_loss,
    states_of,
)
from specstream_mlx.convert.pytorch.head_settings import HeadSettings
from specstream_mlx.convert.pytorch.load import load_base
from torch_tiny import tiny_batch

from specstream_mlx import load
from specstream_mlx.config import UserError
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows

DEPTH = 3
SOME = {"draft_vocabulary": 9}
FORMS = {
    "medusa": {"kind": "medusa", "num_layers": 2},
    "medusa, some tokens": {"kind": "medusa", **SOME},
    "medusa, own heads": {"kind": "medusa", "own_lm_heads": True},
    "medusa, own heads, some tokens": {"kind": "medusa", "own_lm_heads": True, **SOME},
    "hydra": {"kind": "hydra", "num_layers": 2},
    "hydra, some tokens": {"kind": "hydra", **SOME},
    "eagle": {"kind": "eagle"},
    "eagle3": {"kind": "eagle3"},
    "eagle3, some tokens": {"kind": "eagle3", "intermediate_size": 24, **SOME},
    "eagle, some tokens": {"kind": "eagle", "intermediate_size": 24, **SOME},
}


@pytest.fixture
def settings(tied, data, tmp_path):
    small = {"batch_size": 8, "iters": 12, "log_every": 1, "bf16": False, "num_heads": DEPTH}
    fixed = {"model": tied, "data": data, "output": tmp_path / "out", **small}
    return lambda **values: HeadSettings(**{**fixed, **values})


@pytest.fixture(scope="module")
def base(tied):
    return FrozenBase(load_base(tied))


def log(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def random_head(base, chosen):
    """A head with random weights, and what it drafts."""
    torch.manual_seed(1)
    count = chosen.draft_vocabulary
    vocabulary = torch.randperm(base.vocab_size)[:count].sort().values if count else None
    drafted = DraftTokens(base, vocabulary)
    network = head_trainer.build_head(chosen, drafted)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return network.eval(), drafted


@torch.no_grad()
def trained_logits(network, drafted, tokens, hidden):
    """(T, D, n) what the trainer's network says at every position of one text."""
    positions, embeddings = torch.arange(len(tokens))[None], drafted.base.embedding(tokens[None])
    read, _ = states_of(network, hidden, embeddings.shape[-1])
    features = network(read, embeddings, positions)[0]
    pairs = zip(features.unbind(1), drafted.heads(network, DEPTH), strict=True)
    return torch.stack([torch.nn.functional.linear(rows, *head) for rows, head in pairs], 1)


def run_logits(model, text, hidden, position):
    """(D, n) what MLX's head says behind a position and the true tokens after it."""
    borrowed = BorrowedModel(model.model, boundaries=model.head.boundaries)
    head, found = model.head.begin(borrowed), []
    path = text[position + 2 :]

    def rank(logits, tokens, level):
        found.extend(logits if level is None else logits[:1])
        ahead = path[: len(logits)] if level is None else [path[level]]
        return mx.array(ahead)[:, None], mx.zeros((len(ahead), 1))

    rows = slice(position, position + 1)
    head.read(mx.array(text[:position]), tuple(state[:position] for state in hidden))
    following = mx.array(text[position + 1 : position + 2])
    states = tuple(state[rows] for state in hidden)
    head.follow(AcceptedRows(states, mx.array(text[rows]), following, mx.array(1)))
    head.guess(rank, [np.array([0])] * (DEPTH - 1), 1)
    return np.array(mx.stack(found))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_trained_is_what_mlx_runs(form, base, settings, tied_mlx, tmp_path):
    network, drafted = random_head(base, settings(**FORMS[form]))
    directory = tmp_path / "head"
    write_head(network, drafted.vocabulary, "base", directory)
    model, _ = load(tied_mlx, draft_head=directory)
    if drafted.vocabulary is not None:
        assert model.head.tokens.tolist() == drafted.vocabulary.tolist()
    assert model.head.config.parameters == sum(p.numel() for p in network.parameters())
    tokens = torch.randint(0, base.vocab_size, (14,), generator=torch.Generator().manual_seed(2))
    hidden = base.hidden(tokens[None], getattr(network, "boundaries", ()))
    expected = trained_logits(network, drafted, tokens, hidden)
    borrowed = BorrowedModel(model.model, boundaries=model.head.boundaries)
    borrowed.logits(mx.array(tokens.tolist())[None], [None] * len(model.layers))
    own = [state[0] for state in borrowed.take_features()]
    width = 32 * len(own)
    np.testing.assert_allclose(mx.concatenate(own, 1), hidden[0, :, :width], atol=1e-4)
    for position in (3, 8):
        found = run_logits(model, tokens.tolist(), own, position)
        np.testing.assert_allclose(found, expected[position], atol=1e-4 * expected.abs().max())


@pytest.mark.parametrize("form", FORMS)
def test_it_learns_and_the_text_stays(form, settings, data, tied_mlx, tmp_path):
    """From the text: what the random base would write is another."""
    learns = {"iters": 40, "learning_rate": 1e-2, "teacher": "text"}
    if FORMS[form]["kind"] == "eagle":
        learns["token_loss"] = 5.0
    chosen = settings(**FORMS[form], **learns, valid_data=data)
    directory = head_trainer.train_head(chosen)
    lines = log(chosen.output)
    assert lines[39]["loss"] < 0.8 * lines[0]["loss"]
    held_out = lines[-1]["held_out"]
    assert len(held_out["depths"]) == DEPTH
    assert held_out["chain"] > 1.3

    source, target = directory, tmp_path / "mlx"
    run("convert", "--model", tied_mlx, "--draft-head", source, "--mlx-path", target)
    flags = "generate", "--model", tied_mlx, "-p", "check team noon", "-m", 12, "--quiet"
    plain = run(*flags, "--no-speculation").stdout
    assert run(*flags, "--draft-head", target, "--tree-size", 4).stdout == plain


@pytest.mark.parametrize("form", ["medusa, some tokens", "hydra", "eagle", "eagle3, some tokens"])
def test_losses_and_shares_are_those_of_the_whole_logits(form, base, settings):
    """Row by row, with the logits of all positions at once."""
    chosen = settings(**FORMS[form])
    network, drafted = random_head(base, chosen)
    batch = tiny_batch(vocab=base.vocab_size)
    hidden = base.hidden(batch.tokens, getattr(network, "boundaries", ()))
    sums, counts = np.zeros(DEPTH), np.zeros(DEPTH)
    right, there, chain, places = np.zeros(DEPTH), np.zeros(DEPTH), 0, 0
    ids = (
        list(range(base.vocab_size)) if drafted.vocabulary is None else drafted.vocabulary.tolist()
    )
    features = []
    for row, length in enumerate(batch.lengths.tolist()):
        tokens, own = batch.tokens[row, :length], hidden[row : row + 1, :length]
        logits = trained_logits(network, drafted, tokens, own)
        last = own[0, :, -32:]
        teacher = torch.nn.functional.linear(last, *drafted.shared).softmax(-1)
        for position in range(batch.stream_from[row] - 1, length - 1):
            places += 1
            in_a_row = 1
            for level in range(min(DEPTH, length - position - 2)):
                token = tokens[position + 2 + level].item()
                there[level] += 1
                hit = ids[logits[position, level].argmax()] == token
                right[level] += hit
                in_a_row *= hit
                chain += in_a_row
                if token in ids:
                    log_probs = logits[position, level].log_softmax(-1)
                    expected = teacher[position + 1 + level]
                    if not chosen.learns_from_base:
                        expected = torch.nn.functional.one_hot(
                            torch.tensor(ids.index(token)), len(ids)
                        )
                    sums[level] -= (expected * log_probs).sum().item()
                    counts[level] += 1
            if position + 2 < length:
                features.append((row, position))
    loss, per_depth = head_loss(
        network,
        drafted,
        batch,
        hidden,
        [0.5, 0.25, 0.125],
        learns_from_base=chosen.learns_from_base,
        token_loss=0.3,
    )
    assert per_depth == pytest.approx(sums / np.maximum(counts, 1), rel=1e-4)
    total = (sums / np.maximum(counts, 1)) @ [0.5, 0.25, 0.125]
    if chosen.kind == "eagle":
        all_positions = torch.arange(batch.tokens.shape[1]).expand(len(batch.tokens), -1)
        output = network(hidden, base.embedding(batch.tokens), all_positions)[:, :, 0]
        pairs = [(output[r, p], hidden[r, p + 1]) for r, p in features]
        apart = torch.stack([(a - b).abs() for a, b in pairs])
        total = 0.3 * total + torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean().item()
    assert loss.item() == pytest.approx(total, rel=1e-4)
    shares = [a.tolist() for a in count_right(network, drafted, batch, hidden)]
    assert shares == [[*right, places + chain], [*there, places]]


@pytest.mark.parametrize("learns_from_base", [False, True], ids=["text", "base"])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("count", [29, 24, 2, 0])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained head", "frozen head"])
def test_gradients_are_those_of_plain_cross_entropy(
    frozen, count, bf16, softcap, learns_from_base, monkeypatch
):
    """Of rows, trained head and bias, by autograd, with slices smaller than the rows."""
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 150)
    torch.manual_seed(0)
    rows, wanted = torch.randn(count, 32), torch.randint(0, 50, (count,))
    weight, bias = torch.randn(50, 32) / 6, None if frozen else torch.randn(50)
    teacher, shared = torch.randn(count, 32), (torch.randn(50, 32) / 6, torch.randn(50))
    trained = [t.requires_grad_() for t in ((rows,) if frozen else (rows, weight, bias))]
    others = wanted, teacher if learns_from_base else None, shared, softcap
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        found = SummedCrossEntropy.apply(rows, weight, bias, *others)
    gradients = torch.autograd.grad(2.5 * found, trained)

    logits = softcapped(torch.nn.functional.linear(rows, weight, bias), softcap)
    goal = softcapped(teacher @ shared[0].T + shared[1], softcap).softmax(-1)
    plain = torch.nn.functional.cross_entropy(
        logits, goal if learns_from_base else wanted, reduction="sum"
    )
    torch.testing.assert_close(found, plain, rtol=0.02 if bf16 else 1e-5, atol=1e-5)
    expected = torch.autograd.grad(2.5 * plain, trained)
    for mine, theirs in zip(gradients, expected, strict=True):
        atol = 0.02 * theirs.abs().max().item() if bf16 and count else 1e-5
        torch.testing.assert_close(mine, theirs, atol=atol, rtol=1e-5)


def test_resuming_equals_not_stopping_and_hidden_states_outlive_a_run(
    settings, data, tmp_path, monkeypatch
):
    states = tmp_path / "states"
    whole = head_trainer.train_head(settings(output=tmp_path / "whole", hidden_states=states))
    texts = set(data.read_text().splitlines())
    assert len(list(states.iterdir())) == len(texts)
    read = []
    computed = FrozenBase.hidden

    def counted(self, tokens, boundaries):
        read.append(len(tokens))
        return computed(self, tokens, boundaries)

    monkeypatch.setattr(FrozenBase, "hidden", counted)

    class StoppedError(Exception):
        pass

    def stop(step, _):
        if step == 7:
            raise StoppedError

    chosen = settings(save_every=5, hidden_states=states)
    with pytest.raises(StoppedError):
        head_trainer.train_head(chosen, stop)
    with pytest.raises(UserError, match="of an earlier run, expected --resume"):
        head_trainer.train_head(chosen)
    chosen.resume = True
    found = load_file(head_trainer.train_head(chosen) / "model.safetensors")
    assert not read
    expected = load_file(whole / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"kind": "hydra", "own_lm_heads": True}, "own_lm_heads is for medusa, expected none"),
        ({"kind": "eagle", "num_layers": 2}, "num_layers is for medusa and hydra, expected none"),
        ({"kind": "hydra", "intermediate_size": 8}, "is for eagle and eagle3, expected none of it"),
        ({"kind": "eagle3", "token_loss": 1.0}, "token_loss is for eagle, expected none of it"),
        ({"draft_vocabulary": 100_000}, "draft_vocabulary is 100000, expected at most the base's"),
        ({"iters": 1, "epochs": 1}, "iters and epochs were both given"),
        ({"kind": "lookahead"}, "kind is 'lookahead', expected 'medusa', 'hydra', "),
    ],
)
def test_bad_settings_are_one_sentence(settings, values, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        head_trainer.train_head(settings(**values))


def test_other_files_are_kept(settings, tied_mlx, tmp_path):
    (tmp_path / "out" / "head").mkdir(parents=True)
    (tmp_path / "out" / "head" / "letter.txt").write_text("mine")
    with pytest.raises(UserError, match=r"head holds letter\.txt, expected only a draft head's"):
        head_trainer.train_head(settings())
    assert "no safetensors" in refusal(
        run("generate", "--model", tied_mlx, "-p", "a", "--draft-head", tmp_path / "out" / "head")
    )
