"""The PyTorch reference against one list of rows in numpy, and its losses against formulas."""

import math
from itertools import product
from statistics import fmean

import numpy as np
import pytest
import torch
from both_sides import Sides
from brute_force import forward
from random_models import assert_close
from specstream_mlx.convert.pytorch import losses
from specstream_mlx.convert.pytorch.losses import count_correct, n_gram_loss
from torch_tiny import CONDITIONED, tiny_batch, tiny_llama, tiny_model

BASE_MLP = {"stream_mlp": "base", "stream_adapter_rank": 0}
ADAPTER = {"stream_mlp": "adapter", "stream_adapter_rank": 4}
LINEAR = {"stream_init": "linear", "stream_init_rank": 5}
ROTATION = {"stream_init": "value_rotation", "value_rotation_epsilon": 0.4}
VARIANTS = {
    "adapter, 3 layers": {**ADAPTER, "num_msa_layers": 3},
    "base MLP, one stream": {**BASE_MLP, "num_streams": 1},
    "base + adapter, linear": {**ADAPTER, "stream_mlp": "base+adapter", **LINEAR},
    "base MLP, value rotation": {**BASE_MLP, **ROTATION},
    "conditioned head": CONDITIONED,
    "few keys": {"stream_keys": 3},
}


def run(model, batch, **kwargs):
    with torch.no_grad():
        return model(batch.tokens, batch.stream_from, batch.lengths, **kwargs)


@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_one_list_of_rows(name, mode, tmp_path):
    """Main stream, streams and early exit, of a batch of sequences."""
    sides, batch = Sides("Llama 2, Vicuna", tmp_path, mode, **VARIANTS[name]), tiny_batch()
    model, config = sides.torch_model, sides.config | {"rope_theta": sides.model.args.rope_theta}
    out = run(model, batch)
    with torch.no_grad():  # conditioned heads have a test of their own
        plain, exits = model.logits(out.trunk.streams), model.early_exit_logits(out.trunk.seed)
    for item, (length, start) in enumerate(zip(batch.lengths, batch.stream_from, strict=True)):
        tokens = batch.tokens[item, :length].tolist()
        main, streams, early = forward(sides.model, config, tokens, sides.streams, start - 1)
        assert main.std() >= 1
        assert_close(out.main_logits[item, :length].numpy(), main)
        assert_close(exits[item, :length].numpy(), early)
        found = plain[item, : length - start + 1].numpy()
        assert_close(found, np.stack(list(streams.values())))


def conditioned(model, features, before, stream):
    """A conditioned head, written out for one row (h) and one token."""
    head, h = model.streams.head, len(features)

    def normed(x):
        return x / (x.pow(2).sum() / h + 1e-6).sqrt()

    embedding = model.causal_lm.get_input_embeddings().weight[before]
    both = torch.cat((normed(features), normed(embedding)))
    inner = head.down.weight @ both + head.biases[stream]
    return normed(features) + head.up.weight @ (inner / (1 + (-inner).exp()))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_conditioned_logits_are_the_formula_on_the_true_tokens(mode):
    model, batch = tiny_model(mode, **CONDITIONED).double(), tiny_batch()
    out = run(model, batch)
    plain = model.logits(out.trunk.streams)
    for item, c in out.valid.nonzero().tolist():
        p = int(out.positions[item, c])
        for j in (1, 2, 3):
            if p + j >= batch.lengths[item]:
                continue
            before = batch.tokens[item, p + j]
            features = conditioned(model, out.trunk.streams[item, c, j - 1], before, j - 1)
            got = out.stream_logits[item, c, j - 1]
            torch.testing.assert_close(got, model.logits(features))
            assert (got - plain[item, c, j - 1]).abs().max() > 0.1


@pytest.mark.parametrize("head", [{}, CONDITIONED], ids=["plain", "conditioned"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_losses_and_right_tokens_are_those_of_the_logits(mode, head):
    """Means over each stream's targets; a chain is as long as its streams are right in a row."""
    vocab, alphas = 3, [0.7, 0.3, 0.2, 0.1]  # so few tokens that some guesses are right
    model = tiny_model(mode, base=tiny_llama(vocab=vocab), **head)
    batch = tiny_batch(vocab=vocab)
    loss, (correct, counts) = n_gram_loss(model, batch, alphas), count_correct(model, batch)
    terms, early, hits, chain = [[] for _ in alphas], [], [[] for _ in alphas], 0
    for item in range(3):
        length, start = int(batch.lengths[item]), int(batch.stream_from[item])
        tokens = batch.tokens[item : item + 1, :length]
        # The streams of the last token change nothing that is scored.
        out = model(tokens, torch.tensor([start]), torch.tensor([length]))
        exits = model.early_exit_logits(out.trunk.seed).log_softmax(-1)
        for p in range(start - 1, length - 1):
            early.append(-exits[0, p, tokens[0, p + 1]])
            rows, right = [out.main_logits[0, p], *out.stream_logits[0, p - start + 1]], []
            for j, logits in enumerate(rows[: length - 1 - p]):
                target = tokens[0, p + 1 + j]
                terms[j].append(-logits.log_softmax(-1)[target])
                right.append(bool(logits.argmax() == target))
                hits[j].append(right[-1])
            chain += 1 + [*right[1:], False].index(False)
    assert correct[:4].tolist() == list(map(sum, hits))
    assert counts[:4].tolist() == list(map(len, hits))
    assert correct[-1] == chain > counts[-1]
    means = torch.stack([torch.stack(own).mean() for own in terms])
    early = torch.stack(early).mean()
    torch.testing.assert_close(loss.per_stream, means.detach(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(loss.pruner, early.detach(), atol=1e-4, rtol=1e-5)
    total = (torch.tensor(alphas) * means).sum() + early
    torch.testing.assert_close(loss.total, total, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("drawn", [None, [[3, 5, -1], [4, 9, 10], [2, -1, -1]]])
@pytest.mark.parametrize("loss", ["acceptance", "half"])
def test_acceptance_is_the_chance_that_a_drawn_chain_is_right(loss, drawn):
    """Of all chains that streams may draw, tried one by one: how many begin with the true tokens.

    One token of the vocabulary may not be drafted, and a chain ends where it is the next.
    """
    vocab, batch = 3, tiny_batch(vocab=3)
    model = tiny_model("lossless", base=tiny_llama(vocab=vocab), draft_vocabulary=2, **CONDITIONED)
    model.streams.vocabulary.copy_(torch.tensor([0, 2]))
    gamma = model.config.num_streams
    out = run(model, batch)
    terms = [[] for _ in range(gamma)]
    for item, c in out.valid.nonzero().tolist():
        p = int(out.positions[item, c])
        if drawn and p not in drawn[item]:
            continue
        wanted = batch.tokens[item, p + 2 : int(batch.lengths[item])].tolist()[:gamma]
        scores = out.stream_logits[item, c][:, [0, 2]].softmax(-1)
        chances = [0.0] * len(wanted)
        for chain in product((0, 1), repeat=len(wanted)):
            chance = math.prod(float(scores[j, place]) for j, place in enumerate(chain))
            right = [(0, 2)[place] == token for place, token in zip(chain, wanted, strict=True)]
            for depth in range([*right, False].index(False)):
                chances[depth] += chance
        for depth, token in enumerate(wanted):
            if token != 1:
                entropy = -math.log(float(scores[depth, token // 2])) if loss == "half" else 0.0
                terms[depth].append(entropy - chances[depth] * (0.5 if loss == "half" else 1.0))
    batch.drawn = drawn and torch.tensor(drawn)
    found = n_gram_loss(model, batch, [0.0] + [1.0] * gamma, loss)
    assert found.per_stream[1:].tolist() == pytest.approx([fmean(own) for own in terms], rel=1e-4)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_loss_gradient_is_that_of_plain_cross_entropy(softcap, monkeypatch):
    """The sliced head against autograd, with slices smaller than the rows."""
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 150)
    torch.manual_seed(0)
    hidden = torch.randn(11, 32, requires_grad=True)
    head, targets, upstream = torch.randn(50, 32), torch.randint(0, 50, (11,)), torch.randn(11)
    bias = torch.randn(50) if softcap else None
    got = losses.head_cross_entropy(hidden, head, targets, bias, softcap)
    (got_gradient,) = torch.autograd.grad(got, hidden, upstream)
    logits = hidden @ head.T
    if softcap:
        logits = softcap * torch.tanh((logits + bias) / softcap)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    (gradient,) = torch.autograd.grad(expected, hidden, upstream)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_gradient, gradient, atol=1e-5, rtol=1e-5)
