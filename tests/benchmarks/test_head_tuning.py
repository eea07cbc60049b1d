"""The study of draft heads' learning rates and losses: runs on a tiny model, and its table."""

import json
from importlib import import_module

import pytest
import torch
from command_line import refusal, run_program
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from torch_tiny import tiny_completions, tiny_llama
from typer.testing import CliRunner

from benchmarks.studies import head_tuning
from benchmarks.studies.head_tuning import DRAFT_VOCABULARY, LEARNERS, Cell, Runs
from specstream_mlx import UserError
from specstream_mlx.terminal.commands import program

SMALLER = {DRAFT_VOCABULARY: 9, 30: 9}  # drafted tokens, and the layers that the base has
LOSS_FLAGS = {
    "medusa": ("--teacher", {"text", "base"}),
    "medusa-own": ("--teacher", {"text", "base"}),
    "hydra": ("--teacher", {"text", "base"}),
    "eagle": ("--token-loss", {0.1, 1}),
    "eagle3": ("--teacher", {"text", "base"}),
}


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


@pytest.fixture
def runs(base, tmp_path):
    data = tiny_completions(tmp_path / "train.jsonl")
    return Runs(base, data, data, tmp_path / "work", 2, 8)


def value_of(flag, arguments):
    return arguments[arguments.index(flag) + 1]


def flags_of(runs):
    places = ("--model", runs.model, "--data", runs.data, "--valid", runs.valid)
    return (*places, "--work", runs.work, "--iters", runs.iters, "--batch-size", runs.batch_size)


@pytest.mark.parametrize("method", LEARNERS)
def test_every_method_learns_at_each_rate_with_each_loss_once(method, runs, trainings, tmp_path):
    flags = (*flags_of(runs), "--methods", method, "--output", tmp_path)
    run_program(head_tuning.main, *flags)
    learner = LEARNERS[method]
    tried = [(module, value_of("--learning-rate", given)) for module, given in trainings]
    wanted = [(learner.trainer, rate) for rate in learner.rates] * len(learner.losses)
    assert tried == wanted
    if method in LOSS_FLAGS:
        flag, values = LOSS_FLAGS[method]
        assert {value_of(flag, given) for _, given in trainings} == values
    assert [set(learner.flags) <= set(given) for _, given in trainings] == [True] * len(wanted)
    (file,) = tmp_path.glob(f"head-tuning-{method}-*.json")
    rows = json.loads(file.read_text())["rows"]
    depths = 1 if method == "draft-model" else 4
    assert all(len(row["depths"]) == depths for row in rows)
    run_program(head_tuning.main, *flags)
    assert json.loads(file.read_text())["rows"] == rows
    assert len(trainings) == len(rows)  # those that are done are read
    assert f"| {method} |" in file.with_suffix(".md").read_text()


def test_losses_are_not_the_same(runs, trainings):
    chains = {Cell("medusa", loss, 3e-2).train(runs)["chain"] for loss in LEARNERS["medusa"].losses}
    assert len(chains) == 2


def test_streams_learn_by_the_recipe_of_the_bundled_ones():
    flags = LEARNERS["streams"].flags
    assert value_of("--embedding-learning-rate", flags) == 0.1
    assert value_of("--num-msa-layers", flags) == 8


@pytest.mark.parametrize(
    "cell",
    [
        Cell("eagle", next(iter(LEARNERS["eagle"].losses)), 1e-3),
        Cell("draft-model", "text", 1e-3),
        Cell("streams", "text", 1e-3),
    ],
    ids=lambda cell: cell.method,
)
def test_a_run_that_was_broken_off_goes_on(cell, runs, trainings):
    whole = cell.train(runs)
    (log,) = runs.work.glob("*/log.jsonl")
    assert json.loads(log.read_text().splitlines()[-1])["held_out"]
    log.write_text("")  # the last checkpoint is there
    assert cell.train(runs) == whole
    assert "--resume" in trainings[1][1]


def test_runs_on_other_texts_or_of_other_sizes_are_apart(runs, trainings, tmp_path):
    cell = Cell("draft-model", "text", 1e-3)
    cell.train(runs)
    runs.data.write_text(runs.data.read_text() * 2)
    cell.train(runs)
    cell.train(Runs(runs.model, runs.data, runs.valid, runs.work, 1, 8))
    assert len(trainings) == 3
    assert not any("--resume" in given for _, given in trainings)


def test_the_table_ranks_each_method_by_itself():
    def row(method, rate, chain, first=0.5):
        values = {"method": method, "loss": "text", "rate": rate, "chain": chain}
        return values | {"depths": [first, 0.2]}

    rows = [row("a", 1, 1.5), row("a", 2, 1.7), row("a", 3, 1.6), row("b", 1, 1.2), row("b", 2, 1)]
    rows += [row("c", 1, None, 0.4), row("c", 2, None, 0.6)]
    places = ["3", "1", "2", "1, the lowest rate", "2", "2", "1, the highest rate"]
    found = head_tuning.ranked(rows)
    assert [each["place"] for each in found] == places
    assert found[0]["shown"] == ".500 .200"
    lines = head_tuning.table(head_tuning.COLUMNS, found)
    assert lines[2] == "| a | text | 1 | .500 .200 | 1.50 | 3 |"
    assert lines[-1] == "| c | text | 2 | .600 .200 | - | 1, the highest rate |"


def test_mistakes_are_told_in_a_sentence(runs, tmp_path):
    with pytest.raises(UserError, match=r"--methods names 'eagel', expected some of medusa, "):
        head_tuning.cells_of("eagle,eagel")
    with pytest.raises(UserError, match=r"--rates has 'x', expected numbers above 0"):
        head_tuning.cells_of("eagle", "1e-3, x")
    flags = [str(part) for part in flags_of(runs)]
    flags[flags.index("--data") + 1] = str(tmp_path / "none.jsonl")
    result = CliRunner().invoke(program(head_tuning.main), flags)
    assert "none.jsonl: No such file or directory, expected a JSONL file" in refusal(result)


def test_a_trainer_that_refuses_ends_the_study_in_a_sentence(runs, tmp_path):
    flags = [str(part) for part in flags_of(runs)]
    flags[flags.index("--model") + 1] = str(tmp_path / "none")
    result = CliRunner().invoke(program(head_tuning.main), [*flags, "--methods", "draft-model"])
    assert "draft_model_trainer ended with 2, see above" in refusal(result)
