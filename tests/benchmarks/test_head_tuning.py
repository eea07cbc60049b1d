"""The study of draft heads' learning rates and losses: runs on a tiny model, and its table."""

import json
from importlib import import_module

import pytest
import torch
from command_line import run_program
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from torch_tiny import tiny_completions, tiny_llama

from benchmarks.studies import head_tuning
from specstream_mlx import UserError

SMALLER = {head_tuning._DRAFTED: 9, 30: 9}  # drafted tokens, and the layers that the base has


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    tiny_llama(layers=9, vocab=VOCAB_SIZE).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture
def trainings(monkeypatch):
    """The trainers' command lines; they run in this process, on a smaller base."""
    found = []

    def run_module(module, *arguments, torch_first):
        assert torch_first
        found.append((module, arguments))
        arguments = [SMALLER.get(part, part) for part in arguments]
        run_program(import_module(module).main, *arguments, "--no-bf16", hidden=True)

    monkeypatch.setattr(head_tuning, "run_module", run_module)
    return found


@pytest.mark.parametrize("method", head_tuning.LEARNERS)
def test_every_method_learns_at_each_rate_with_each_loss_once(method, base, trainings, tmp_path):
    data = tiny_completions(tmp_path / "train.jsonl")
    places = ("--model", base, "--data", data, "--valid", data, "--work", tmp_path / "work")
    sizes = ("--iters", 2, "--batch-size", 8, "--methods", method, "--output", tmp_path)
    run_program(head_tuning.main, *places, *sizes)
    learner = head_tuning.LEARNERS[method]
    assert len(trainings) == len(learner.rates) * len(learner.losses)
    (file,) = tmp_path.glob("head-tuning-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert {(row["loss"], row["rate"]) for row in rows} == {
        (loss, rate) for loss in learner.losses for rate in learner.rates
    }
    depths = 1 if method == "draft-model" else 4
    assert all(len(row["depths"]) == depths for row in rows)
    assert len({json.dumps(row["depths"]) for row in rows}) > 1
    first = file.read_bytes()
    run_program(head_tuning.main, *places, *sizes)
    assert file.read_bytes() == first
    assert len(trainings) == len(rows)  # those that are done are read


def test_a_run_that_was_broken_off_goes_on(base, trainings, tmp_path):
    data = tiny_completions(tmp_path / "train.jsonl")
    runs = head_tuning.Runs(base, data, data, tmp_path / "work", 1, 8)
    cell = head_tuning.Cell("eagle", "tokens weigh 1", 1e-3)
    whole = cell.train(runs)
    (output,) = set((tmp_path / "work").iterdir()) - {tmp_path / "work" / "states"}
    lines = (output / "log.jsonl").read_text().splitlines()
    (output / "log.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    assert cell.train(runs) == whole
    assert "--resume" in trainings[1][1]


def test_the_table_ranks_each_method_by_itself():
    def row(method, rate, chain, first=0.5):
        return {
            "method": method,
            "loss": "text",
            "rate": rate,
            "chain": chain,
            "depths": [first, 0.2],
        }

    rows = [row("a", 1, 1.5), row("b", 1, 1.2), row("a", 2, 1.7), row("b", 2, 1.3)]
    rows += [row("c", 1, None, 0.4), row("c", 2, None, 0.6)]
    assert [each["place"] for each in head_tuning.ranked(rows)] == [2, 2, 1, 1, 2, 1]
    assert head_tuning.ranked(rows)[0]["shown"] == ".500 .200"


def test_an_unknown_method_is_refused():
    with pytest.raises(UserError, match=r"--methods names 'eagel', expected some of medusa, "):
        head_tuning.cells_of("eagle,eagel")
