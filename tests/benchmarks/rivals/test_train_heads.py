"""Draft heads of other methods: what is trained is what MLX runs, and it learns."""

import json

import mlx.core as mx
import numpy as np
import pytest
import torch
from random_models import plain_tokens, tokens_of
from specstream_mlx.convert.pytorch.load import load_base

from benchmarks.rivals import train_heads
from benchmarks.rivals.heads import mounted
from benchmarks.rivals.train_heads import Drafts, HeadSettings, write_head
from specstream_mlx import load
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows

DEPTH = 3
FORMS = {
    "medusa": {"kind": "medusa"},
    "medusa, own heads": {"kind": "medusa", "own_lm_heads": True},
    "hydra": {"kind": "hydra"},
    "eagle": {"kind": "eagle"},
    "eagle3": {"kind": "eagle3"},
}


@pytest.fixture
def settings(tied, data, tmp_path):
    small = {"batch_size": 8, "iters": 12, "log_every": 1, "bf16": False, "num_heads": DEPTH}
    fixed = {"model": tied, "data": data, "output": tmp_path / "out", **small}
    return lambda **values: HeadSettings(**{**fixed, **values})


@pytest.fixture(scope="module")
def base(tied):
    return load_base(tied)


def random_head(base, chosen):
    """A head with random weights, and what it drafts."""
    torch.manual_seed(1)
    drafts = Drafts(base)
    network = train_heads.build_head(chosen, drafts)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return network.eval(), drafts


@torch.no_grad()
def trained_logits(network, drafts, tokens):
    """(T, D, n) what the trainer's network says at every position of one text."""
    positions, embeddings = torch.arange(len(tokens))[None], drafts.backbone.embedding(tokens[None])
    read, _ = drafts.hidden(tokens[None], getattr(network, "boundaries", ()))
    features = network(read, embeddings, positions)[0]
    heads = [(head.weight, head.bias) for head in network.lm_heads] or [drafts.shared] * DEPTH
    pairs = zip(features.unbind(1), heads, strict=True)
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
    network, drafts = random_head(base, settings(**FORMS[form]))
    directory = tmp_path / "head"
    write_head(network, "base", directory)
    model, _ = load(tied_mlx)
    model.mount_head(mounted(directory, model))
    assert model.head.config.parameters == sum(p.numel() for p in network.parameters())
    seeded = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, base.config.vocab_size, (14,), generator=seeded)
    expected = trained_logits(network, drafts, tokens)
    borrowed = BorrowedModel(model.model, boundaries=model.head.boundaries)
    borrowed.logits(mx.array(tokens.tolist())[None], [None] * len(model.layers))
    own = [state[0] for state in borrowed.take_features()]
    for position in (3, 8):
        found = run_logits(model, tokens.tolist(), own, position)
        np.testing.assert_allclose(found, expected[position], atol=1e-4 * expected.abs().max())


@pytest.mark.parametrize("form", FORMS)
def test_it_learns_and_the_text_stays(form, settings, data, tied_mlx):
    """From the text: what the random base would write is another."""
    learns = {"iters": 40, "learning_rate": 1e-2, "teacher": "text"}
    if FORMS[form]["kind"] == "eagle":
        learns["token_loss"] = 5.0
    chosen = settings(**FORMS[form], **learns, valid_data=data)
    directory = train_heads.train_head(chosen)
    lines = [json.loads(line) for line in (chosen.output / "log.jsonl").read_text().splitlines()]
    assert lines[39]["loss"] < 0.8 * lines[0]["loss"]
    assert len(lines[-1]["held_out"]["depths"]) == DEPTH
    assert lines[-1]["held_out"]["chain"] > 1.3
    model, _ = load(tied_mlx)
    prompt = [5, 9, 3, 7]
    expected = plain_tokens(model.model, prompt, 12)
    model.mount_head(mounted(directory, model))
    assert tokens_of(model, prompt, 12, tree_size=4)[:12] == expected
