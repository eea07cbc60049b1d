"""Heads that know more of what was drafted start as the one that is, and are judged as it is."""

import pytest
import torch
from specstream_mlx.convert.pytorch.trainer import evaluate
from torch_tiny import tiny_model

from benchmarks.studies.drafted_tokens import KINDS, Contest, LastToken, rows_of
from specstream_mlx import UserError
from specstream_mlx.train.items import Item

VOCABULARY = 30
ITEMS = [Item([(7 * i * i + 3 * k) % 50 for i in range(9 + k)], 2 + k % 3) for k in range(12)]


@pytest.fixture
def model():
    model = tiny_model(stream_head="conditioned", stream_head_rank=6, draft_vocabulary=VOCABULARY)
    model.streams.vocabulary.copy_(torch.arange(1, 1 + VOCABULARY))
    return model


@pytest.fixture
def read():
    """Streams and embedded tokens of five positions."""
    torch.manual_seed(1)
    return torch.randn(5, 3, 32), torch.randn(5, 3, 32)


@pytest.mark.parametrize("kind", KINDS.values())
def test_every_kind_starts_as_the_adapters_head(model, read, kind):
    streams, embedded = read
    expected = model.streams.head(streams, model.streams.head.read(embedded))
    assert torch.allclose(kind(model.streams.head)(streams, embedded), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_each_stream_reads(model, read, kind):
    head = kind(model.streams.head)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    streams, embedded = read
    before = head(streams, embedded)
    for place in range(3):
        other = embedded.clone()
        other[:, place] += 1
        changed = (head(streams, other) != before).any(-1).all(0).tolist()
        later = kind is not LastToken
        assert changed == [j == place or (later and j > place) for j in range(3)]


def test_the_adapters_own_head_is_judged_as_trainers_do(model):
    found = Contest(model, rows_of(model, ITEMS))
    judged = found.judged(LastToken(found.head), rows_of(model, ITEMS), 7)
    expected = evaluate(model, ITEMS, 4)
    assert judged["depths"] == pytest.approx(expected["streams"])
    assert judged["chain"] == pytest.approx(expected["chain"])
    assert any(judged["depths"])


@pytest.mark.parametrize("kind", KINDS.values())
def test_heads_learn_and_nothing_else_does(model, kind):
    rows = rows_of(model, ITEMS)
    contest = Contest(model, rows)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start = contest.judged(kind(contest.head), rows, 64)
    trained = contest.judged(contest.trained(kind, 60, 32, 0.03), rows, 64)
    assert trained["chain"] > start["chain"] + 0.1
    assert trained["parameters"] == start["parameters"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_plain_head_is_refused():
    model = tiny_model()
    with pytest.raises(UserError, match="is 'plain', expected 'conditioned'"):
        Contest(model, rows_of(model, ITEMS))
