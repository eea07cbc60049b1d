"""At a temperature the first four tokens are distributed as plain decoding's.

Of the rule ``rejection``, whose draws and trees are the project's own; only the model is a table.
The text of ``keyed`` is plain decoding's own, see test_keyed.
"""

from functools import cache, partial

import mlx.core as mx
import numpy as np
import pytest
from distribution import ALPHA, CERTAIN, LENGTH, Table, joint, p_value, plain, rows, simulate, tail
from mlx_lm.sample_utils import make_sampler
from random_models import paired
from trees import full_tree

from specstream_mlx.engine.guess import drawn_candidates, normalized
from specstream_mlx.engine.sampling import Sampling
from specstream_mlx.engine.verify.rejection import drafts_after, recursive_rejection
from specstream_mlx.engine.verify.rule import follow

DRAWS = 40_000

SAMPLINGS = {
    "temperature": (Sampling(temp=0.8), {}),
    "top-p": (Sampling(temp=1.0, top_p=0.9), {}),
    "min-p": (Sampling(temp=1.5, min_p=0.2), {}),
    "penalty, bias": (
        Sampling(temp=1.0),
        {"repetition_penalty": 1.8, "repetition_context_size": 2, "logit_bias": {0: 0.7, 3: -0.5}},
    ),
    "all": (
        Sampling(temp=1.4, top_p=0.95, min_p=0.05, top_k=3),
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    ),
}


@cache
def plain_by(sampling):
    return plain(Table(), *SAMPLINGS[sampling])


@cache
def target(sampling):
    return joint(plain_by(sampling), Table().vocab_size)


def rejection_step(sampling, width, text, count, wrong=None):
    """The rule ``rejection`` for ``count`` texts that each draw a full tree of their own.

    ``wrong`` plants a rule; ``pruning``: of two drafts the one with the better early exit is kept.
    """
    table, (sampler, _) = Table(), SAMPLINGS[sampling]
    if not text:
        logits = rows(np.array([plain_by(sampling)(())], np.float32), count)
        return np.array(mx.random.categorical(logits))[:, None]
    gamma = table.num_streams
    drafter = np.array(sampler.log_probs(mx.array(table.stream_logits(text))))
    drawn = np.array(drawn_candidates(rows(drafter, count), width)[0]).reshape(count, gamma, width)
    if wrong == "pruning":
        best = table.early_exit_logits(text)[drawn].argmax(axis=-1)
        drawn, width = np.take_along_axis(drawn, best[..., None], -1), 1
    # All trees have one shape; its "tokens" are the places of the drawn ones.
    shape = full_tree(-1, np.arange(gamma * width).reshape(gamma, width), width)
    tokens = np.concatenate([np.zeros((count, 1), int), drawn.reshape(count, -1)], axis=1)
    tokens = tokens[:, shape.tokens + 1]
    paths = np.full((count, len(shape), gamma), -1)
    for node in range(1, len(shape)):
        path = shape.path(node)[1:]
        paths[:, node, : len(path)] = tokens[:, path]
    p = target_rows(sampling, text, paths.reshape(-1, gamma))
    q = np.tile(np.exp(drafter)[np.minimum(shape.depths, gamma - 1)], (count, 1))
    slots = drafts_after(shape)
    drafts = np.where(slots >= 0, drawn.reshape(count, -1)[:, slots], -1).reshape(len(p), -1)
    rule = PLANTED.get(wrong, recursive_rejection)
    predictions = rule(*map(mx.array, (p, q, drafts))).reshape(count, len(shape))
    tree = map(mx.array, (tokens, shape.parents, shape.ancestors))
    last = np.array(follow(*tree, predictions))
    each = np.arange(count)
    found = np.concatenate([paths[each, last], np.full((count, 1), -1)], axis=1)
    found[each, shape.depths[last]] = np.array(predictions)[each, last]
    return found


def target_rows(sampling, text, paths):
    """(rows, vocab) the target's probabilities after the text and each path, padded with -1.

    Behind the tokens that are tested any will do.
    """
    different, which = np.unique(paths, axis=0, return_inverse=True)
    longer = [(*text, *path[path >= 0].tolist())[: LENGTH - 1] for path in different]
    values = np.stack([np.exp(plain_by(sampling)(one)) for one in longer])
    return values[which.ravel()].astype(np.float32)


def _residual_not_updated(target, drafter, drafts):
    """After all refusals the token is drawn from p itself."""
    found = recursive_rejection(target, drafter, drafts)
    is_draft = (found[:, None] == drafts).any(axis=1)
    again = mx.random.categorical(mx.log(target)).astype(mx.int32)
    return mx.where(is_draft, found, again)


def _drafter_not_updated(target, drafter, drafts):
    """q keeps the token that was refused."""
    chosen = mx.full(drafts.shape[:1], -1, mx.int32)
    for rank in range(drafts.shape[1]):
        draft = mx.maximum(drafts[:, rank : rank + 1], 0)
        q, p = (mx.take_along_axis(x, draft, axis=-1) for x in (drafter, target))
        open_ = (drafts[:, rank : rank + 1] >= 0) & (chosen[:, None] < 0)
        accepted = open_ & (mx.random.uniform(shape=q.shape) * q < p)
        chosen = mx.where(accepted[:, 0], draft[:, 0], chosen)
        rest = mx.maximum(target - drafter, 1e-12)
        target = mx.where(open_ & ~accepted, rest / rest.sum(-1, keepdims=True), target)
    return mx.where(chosen < 0, mx.random.categorical(mx.log(target)).astype(mx.int32), chosen)


PLANTED = {"residual": _residual_not_updated, "drafter": _drafter_not_updated}


@pytest.mark.parametrize(("sampling", "width"), paired(SAMPLINGS, (1, 2, 4)))
def test_rejection(sampling, width):
    mx.random.seed(3)
    counts = simulate(partial(rejection_step, sampling, width), DRAWS)
    assert p_value(counts, target(sampling)) > ALPHA


@pytest.mark.parametrize(("wrong", "width"), [("residual", 1), ("drafter", 2), ("pruning", 2)])
def test_a_wrong_rejection_is_noticed(wrong, width):
    mx.random.seed(3)
    counts = simulate(partial(rejection_step, "temperature", width, wrong=wrong), DRAWS)
    assert p_value(counts, target("temperature")) < CERTAIN


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sampling_is_mlx_lms_sampler(sampling):
    """The same draws from the same random state, and the probabilities of these draws."""
    sampler = SAMPLINGS[sampling][0]
    fields = {name: getattr(sampler, name) for name in ("temp", "top_p", "min_p", "top_k")}
    log_probs = normalized(mx.array(Table(vocab_size=6, seed=5).logits(()))[None])
    many = rows(np.array(log_probs), DRAWS)
    mx.random.seed(6)
    ours = np.array(sampler(many))
    mx.random.seed(6)
    assert (ours == np.array(make_sampler(**fields)(many))).all()
    expected = DRAWS * np.exp(np.array(sampler.log_probs(log_probs))[0].astype(np.float64))
    seen = np.bincount(ours, minlength=6)
    assert (seen[expected == 0] == 0).all()
    seen, expected = seen[expected > 0], expected[expected > 0]
    assert tail(((seen - expected) ** 2 / expected).sum(), len(seen) - 1) > ALPHA


def test_the_tail_of_chi_square():
    """Against tabulated quantiles."""
    assert tail(18.307, 10) == pytest.approx(0.05, rel=0.02)
    assert tail(330.520, 255) == pytest.approx(0.001, rel=0.1)
