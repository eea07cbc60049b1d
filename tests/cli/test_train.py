"""``specstream-mlx train``: from a base to a faster one, and what it says to mistakes."""

import json
import re
import shutil
import signal
from types import SimpleNamespace

import pytest
from command_line import refusal, run, succeeded
from tiny_models import stream_adapter_directory
from tiny_training import data_directory, rows_of, write_rows

from specstream_mlx import load
from specstream_mlx.hardware import device
from specstream_mlx.train import distil, outcome
from specstream_mlx.train import run as run_module
from specstream_mlx.train.distil import SHIPPED, Answering, read_prompts

MEASURING = "Measuring what the run will take here, on a little of each stage's work"
SMALL = ("--num-msa-layers", 2, "--iters", 6, "--batch-size", 8, "--steps-per-eval", 3)


@pytest.fixture(autouse=True)
def one_text(monkeypatch):
    monkeypatch.setattr(outcome, "_TEXTS", 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_directory(tmp_path_factory.mktemp("data"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"check the numbers {n}\n" for n in (*range(25), 3)))
    return path


def test_from_a_base_to_streams_without_data(base, prompts, tmp_path):
    out = tmp_path / "out"
    flags = ("--model", base, "--prompts", prompts, "--max-tokens", 12, "--adapter-path", out)
    result = succeeded(run("train", *flags, *SMALL))
    assert result.stdout == f"{out}\n"
    lines = result.stderr.splitlines()
    assert re.match(r"About \d+ s here, [\d.]+ MB of memory, [\d.]+ MB of disk:$", lines[0])
    assert lines[1].startswith("  answers ") and lines[1].endswith("25 of up to 12 tokens")
    assert lines[2].startswith("  training ") and " parameters, 6 iterations, about " in lines[2]
    assert lines[3].endswith("1 held-out text, decoded in three ways")
    assert lines[4] == "The base answers 25 prompts"
    assert any(line.startswith("Iter 3: Val loss ") for line in lines)
    assert any(line.startswith("Iter 6: Train loss ") and " left" in line for line in lines)
    assert lines[-2].startswith("The adapter is the state after ")
    assert lines[-1].startswith("Whether it paid cannot be told from 1 held-out text, expected 5")
    run_files = tmp_path / "out.training"
    assert [line["iteration"] for line in rows_of(run_files / "log.jsonl")] == [0, 3, 6, 6]
    assert len(rows_of(run_files / "data" / "train.jsonl")) == 20
    valid = rows_of(run_files / "data" / "valid.jsonl")  # enough for a verdict
    assert [row["prompt"] for row in valid] == [f"check the numbers {n}" for n in range(4, 25, 5)]
    assert load(base, adapter_path=out)[0].streams.config.stream_head == "conditioned"


def test_answers_are_what_the_base_writes_and_are_kept(base, prompts, tmp_path, monkeypatch):
    flags = ("--model", base, "--prompts", prompts, "--max-tokens", 8)
    flags += ("--adapter-path", tmp_path / "out", "--answers-only")
    assert run("train", *flags).exit_code == 0
    path = tmp_path / "out.training" / "data" / "train.jsonl"
    whole = path.read_text()
    row = json.loads(whole.splitlines()[0])
    written = run("generate", "--model", base, "-p", row["prompt"], "-m", 8, "--no-speculation")
    assert written.stdout.rstrip("\n") == row["completion"].rstrip("\n")
    path.write_text(whole[: len(whole) // 2])  # as a process that was killed left it
    assert run("train", *flags).exit_code == 0
    assert sorted(path.read_text().splitlines()) == sorted(whole.splitlines())
    monkeypatch.setattr(distil, "batch_generate", None)  # nothing is asked again
    assert run("train", *flags).exit_code == 0
    for limit, text, sentence in (
        (
            9,
            prompts.read_text(),
            "answers.json: max_tokens was 8 and is now 9: go on with what was",
        ),
        (8, "check the report\nthe team\n", "answers.json: prompts was "),
        (8, "check the report\n", "1 of the prompts can be answered, expected"),
    ):
        prompts.write_text(text)
        changed = run("train", *flags, "--max-tokens", limit)
        assert sentence in last_line(changed)


def test_an_estimate_writes_nothing_and_says_what_is_too_little(
    base, prompts, tmp_path, monkeypatch
):
    flags = ("train", "--model", base, "--prompts", prompts, "--max-tokens", 8, *SMALL)
    flags += ("--adapter-path", tmp_path / "new" / "out")
    before = sorted(tmp_path.rglob("*"))
    for more, stages in (
        (("--answers-only",), ["answers"]),
        (("--prompts", "self", "--no-outcome"), ["prompts", "answers", "training"]),
    ):
        result = run(*flags, *more, "--estimate")
        assert (result.exit_code, result.stdout) == (0, "")
        measuring, _, *lines = result.stderr.splitlines()
        assert (measuring, [line.split()[0] for line in lines]) == (MEASURING, stages)
    for where, name, little, sentence in (
        (device, "memory_bytes", lambda: 100_000, " of memory and this machine has 100.0 kB: exp"),
        (shutil, "disk_usage", lambda _: SimpleNamespace(free=9_000), "9.0 kB are free on the "),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, little)
            for more in ((), ("--estimate",)):
                assert sentence in last_line(run(*flags, *more))
    assert sorted(tmp_path.rglob("*")) == before


def test_it_paid_where_the_interval_over_lookup_is_above_one():
    texts, plain = [1.3, 1.1, 1.2, 1.4, 1.25], [2.0] * 5
    assert outcome.verdict(texts, plain, 2.0) == (
        "It paid: on 5 held-out texts the streams are 1.25 times as fast as prompt lookup "
        "(95 % interval 1.11 to 1.39), which needs no streams, and 2.00 times as plain mlx_lm; a "
        "call of the model writes 2.00 tokens."
    )
    for over_lookup, over_plain, words in (
        ([1.48], [1.9], "Whether it paid cannot be told from 1 held-out text, expected 5: "),
        ([1.9, 0.9, 1.0, 1.5, 0.8, 1.2], plain, "It did not pay on this machine: on 6 held-out"),
        (texts, [0.9] * 5, "It did not pay on this machine: "),
        ([], [], "Whether it paid cannot be told: no held-out text has more than a token"),
    ):
        assert outcome.verdict(over_lookup, over_plain, 1.13).startswith(words)


def test_lora_that_stays_answers_with_its_instruction(base, prompts, tmp_path):
    fields = {"lora_rank": 4, "lora_scale": 2.0, "prompt_template": "Do: {text}"}
    lora = stream_adapter_directory(tmp_path / "lora", base, **fields)
    flags = ("train", "--model", base, "--prompts", prompts, "--max-tokens", 8, "--answers-only")
    flags += ("--adapter-path", tmp_path / "out")
    succeeded(run(*flags, "--init-adapter", lora))
    row, texts = rows_of(tmp_path / "out.training" / "data" / "train.jsonl")[0], []
    for adapter in (("--adapter-path", lora), ()):
        ask = ("-p", row["prompt"], "-m", 8, "--no-speculation")
        texts.append(run("generate", "--model", base, *adapter, *ask).stdout.rstrip("\n"))
    assert texts[0] == row["completion"].rstrip("\n") != texts[1]
    assert "answers.json: " in last_line(run(*flags))


def test_what_is_drawn_does_not_depend_on_interruptions(base, prompts, tmp_path):
    answering = Answering(max_tokens=8, temp=1.0, batch_size=5)
    model, tokenizer = load(base)
    texts = read_prompts(prompts)
    distil.distil(model, tokenizer, texts, tmp_path / "a", answering)
    whole = (tmp_path / "a" / "train.jsonl").read_text().splitlines()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.jsonl").write_text("\n".join(whole[:7]) + "\n")
    distil.distil(model, tokenizer, texts, tmp_path / "b", answering)
    assert (tmp_path / "b" / "train.jsonl").read_text().splitlines() == whole


def test_an_adapter_for_one_application(base, data, tmp_path):
    out = tmp_path / "out"
    config = tmp_path / "lora.yaml"
    config.write_text(
        f"model: {base}\ntrain: true\nmask_prompt: true\nfine_tune_type: lora\n"
        "resume_adapter_file: null\ntest: false\ntest_batches: 100\nreport_to: null\n"
        "mode: shared\niters: 50\nlearning_rate: 1e-2\nnum_msa_layers: 2\nbatch_size: 8\n"
        "lora_parameters: {keys: [self_attn.q_proj], rank: 3, scale: 4.0, dropout: 0.1}\n"
    )
    succeeded(run("train", "-c", config, "--data", data, "--iters", 6, "--adapter-path", out))
    model, _ = load(base, adapter_path=out)
    assert model.mode == "shared"
    names = {name.split(".", 3)[3] for name in model.adapter.lora}
    assert names == {"self_attn.q_proj.lora_a", "self_attn.q_proj.lora_b"}
    assert model.adapter.config["lora_parameters"]["rank"] == 3


def test_resume_goes_on_and_nothing_is_overwritten(base, data, tmp_path):
    out = tmp_path / "out"
    flags = ("--model", base, "--data", data, "--adapter-path", out, *SMALL, "--no-outcome")
    assert "holds no checkpoint to resume from" in refusal(run("train", *flags, "--resume"))
    result = run("train", *flags, "--learning-rate", 1e9)
    assert result.stderr.splitlines()[-1].startswith("Its streams have learned next to nothing")
    flags = (*flags, "--learning-rate", 1e9)
    before = (out / "speculative_streaming.safetensors").read_bytes()
    taken = "exists already, expected a new --adapter-path, or --resume to go on with its run"
    assert taken in refusal(run("train", *flags))
    again = run("train", *flags, "--resume")
    assert again.exit_code == 0
    assert "The run is at its end, after 6 iterations" in again.stderr
    assert (out / "speculative_streaming.safetensors").read_bytes() == before
    (out / "mine.txt").write_text("mine")
    assert "exists already" in refusal(run("train", *flags, "--resume"))
    shutil.rmtree(out)
    earlier = f"{tmp_path / 'out.training'} holds an earlier run, expected --resume"
    assert earlier in refusal(run("train", *flags))
    other = (*flags, "--resume", "--learning-rate", 0.1, "--iters", 9)
    refused = last_line(run("train", *other))
    assert (
        "learning_rate was '1000000000.0' and is now '0.1', iters was '6' and is now '9'" in refused
    )


def test_an_interrupt_within_the_last_validation_ends_the_run(base, data, tmp_path, monkeypatch):
    """Nothing is left to iterate then, but the comparison would follow."""
    counted, validate = [], run_module.validate

    def validated(*args):
        counted.append(args)
        if len(counted) == 3:
            signal.raise_signal(signal.SIGINT)
        return validate(*args)

    monkeypatch.setattr(run_module, "validate", validated)
    flags = ("train", "--model", base, "--data", data, "--adapter-path", tmp_path / "out", *SMALL)
    result = run(*flags)
    assert result.exit_code == 130
    assert result.stderr.endswith("Stopped after 6 iterations; --resume goes on\n")
    assert succeeded(run(*flags, "--resume", "--no-outcome")).stdout == f"{tmp_path / 'out'}\n"


def last_line(result):
    """The sentence of a command that had begun."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("--mode", "shared"), "mode is 'shared' without --data, expected"),
        ("a: [\n", "c.yaml, line 2, is not valid YAML"),
        ("fine_tune_type: full\n", "c.yaml: fine_tune_type is 'full', expected lora"),
        ("lora_parameters: {rank: 3}\n", "lora_parameters is {'rank': 3}, expected rank (at"),
        (
            "grad_checkpoint: true\nmode: shared\n"
            "lora_parameters: {rank: 3, scale: 1.0, dropout: 0.1}\n",
            "dropout is 0.1 with grad_checkpoint, expected 0",
        ),
        ("init_adapter: 3\n", "c.yaml: init_adapter is 3, expected a path"),
        ("[" * 5000, "c.yaml is nested too deeply, expected settings by name"),
        ("iters: 2026-99-01\n", "c.yaml is not valid YAML: "),
    ],
)
def test_wrong_flags_and_configuration_files(wrong, sentence, base, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = wrong
    if isinstance(wrong, str):
        (tmp_path / "c.yaml").write_text(wrong)
        flags = ("--data", data, "-c", "c.yaml")
    assert sentence in refusal(run("train", "--model", base, *flags, "--adapter-path", "out"))
    assert not (tmp_path / "out.training").exists()


def test_the_shipped_prompts_and_files_of_prompts(tmp_path):
    assert len(read_prompts(SHIPPED)) == 400
    path = tmp_path / "train.jsonl"
    two = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]}
    rows = [{"prompt": "one", "completion": "x"}, two, {"prompt": "one"}]
    assert read_prompts(write_rows(path, rows)) == ["one", "two"]
    path.write_text('{"text": "x"}\n')
    with pytest.raises(ValueError, match=r"train.jsonl, line 1 is .* expected a prompt"):
        read_prompts(path)
