"""Heads that know more of what was drafted start as the one that is, and are judged as it is."""

import json

import pytest
import torch
from command_line import run_program
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.reference import normed
from specstream_mlx.convert.pytorch.trainer import evaluate
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from torch.nn.functional import silu
from torch_tiny import tiny_completions, tiny_llama, tiny_model

from benchmarks.studies import drafted_tokens
from benchmarks.studies.drafted_tokens import (
    KINDS,
    Contest,
    EveryToken,
    HandedOn,
    LastToken,
    rows_of,
)
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


def filled(head):
    """The head with random weights, those that start at zero too."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return head


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_each_stream_reads(model, read, kind):
    head = filled(kind(model.streams.head))
    streams, embedded = read
    before = head(streams, embedded)
    for place in range(3):
        other = embedded.clone()
        other[:, place] += 1
        changed = (head(streams, other) != before).any(-1)
        later = kind is not LastToken
        expected = [j == place or (later and j > place) for j in range(3)]
        assert changed.tolist() == [expected] * len(embedded)


def test_every_token_has_a_matrix_by_its_distance(model, read):
    head = filled(EveryToken(model.streams.head))
    streams, embedded = read
    tokens, size = normed(embedded), embedded.shape[-1]
    matrices = [head.head.down.weight[:, size:], *head.earlier]
    for j in range(3):
        inner = normed(streams[:, j]) @ head.head.down.weight[:, :size].T + head.head.biases[j]
        for distance, matrix in enumerate(matrices[: j + 1]):
            inner = inner + tokens[:, j - distance] @ matrix.T
        expected = normed(streams[:, j]) + silu(inner) @ head.head.up.weight.T
        assert torch.allclose(head(streams, embedded)[:, j], expected, rtol=1e-4, atol=1e-4)


def test_a_state_is_handed_from_stream_to_stream(model, read):
    head = filled(HandedOn(model.streams.head))
    streams, embedded = read
    tokens, state = normed(embedded), 0
    for j in range(3):
        each = torch.cat((normed(streams[:, j]), tokens[:, j]), dim=1)
        state = silu(each @ head.head.down.weight.T + head.head.biases[j] + state)
        expected = normed(streams[:, j]) + state @ head.head.up.weight.T
        assert torch.allclose(head(streams, embedded)[:, j], expected, rtol=1e-4, atol=1e-4)
        state = state @ head.state.T


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
    start, trained = kind(contest.head), contest.trained(kind, 60, 32, 0.03)
    found = contest.judged(trained, rows, 64)
    assert found["chain"] > contest.judged(start, rows, 64)["chain"] + 0.1
    assert found["parameters"] == sum(tensor.numel() for tensor in trained.state_dict().values())
    for learned, first in zip(trained.parameters(), start.parameters(), strict=True):
        assert not torch.equal(learned, first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_its_report(tmp_path):
    base = tiny_llama(vocab=VOCAB_SIZE)
    base.save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    fields = {"stream_head": "conditioned", "stream_head_rank": 6, "pruner_rank": 0}
    write_adapter(tiny_model(base=base, **fields), tmp_path / "adapter")
    data = tiny_completions(tmp_path / "data.jsonl")
    arguments = ["--model", tmp_path / "base", "--adapter", tmp_path / "adapter", "--data", data]
    arguments += ["--valid", data, "--answers", 5, "--iters", 2, "--rows", 8]
    run_program(drafted_tokens.main, *arguments, "--output", tmp_path / "out")
    [page] = (tmp_path / "out").glob("drafted-tokens-*.md")
    printed = page.read_text()
    assert "in 5 answers of the base" in printed
    for name in ("as the adapter has it", *KINDS):
        assert printed.count(f"| {name} | ") == 1
    [file] = (tmp_path / "out").glob("drafted-tokens-*.json")
    assert len(json.loads(file.read_text())["rows"]) == 1 + len(KINDS)


def test_a_plain_head_is_refused():
    model = tiny_model()
    with pytest.raises(UserError, match="is 'plain', expected 'conditioned'"):
        Contest(model, rows_of(model, ITEMS))
