"""``benchmark quantization``: its rows, what it says of the origin, and wrong texts."""

import json

import command_line
import mlx.core as mx
import pytest
from mlx_lm import load as load_plain
from specstream_mlx.benchmarks import quantization, runner
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import stream_adapter_directory, tiny_llama_directory

SHAPES = ("chain", "tree of 8", "with lookup")
PROMPTS = "hello there my friend\nthe report is late\n"


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A model in bfloat16, with streams beside it."""
    folder = tmp_path_factory.mktemp("half")
    whole = tiny_llama_directory(folder / "whole", intermediate_size=128)
    convert_base(whole, folder / "base", dtype="bfloat16")
    stream_adapter_directory(folder / "streams", folder / "base")
    stream_adapter_directory(folder / "shared", folder / "base", mode="shared", lora_rank=4)
    return folder


@pytest.fixture
def run(half, tmp_path, monkeypatch):
    """Runs the command in an empty directory with a file of prompts."""
    (tmp_path / "mine.txt").write_text(PROMPTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quantization, "measure_costs", lambda *_: None)
    own = ("--model", half / "base", "--prompts", "mine.txt", "--max-tokens", 12)
    return lambda *flags: command_line.run("benchmark", "quantization", *own, *flags)


def rows_of(result):
    return json.loads(command_line.succeeded(result).stdout)["rows"]


def test_a_model_in_16_bits_is_quantized_as_convert_does_and_nothing_is_written(
    run, half, tmp_path
):
    before = {path: path.stat().st_mtime_ns for path in half.rglob("*")}
    rows = rows_of(run("--bits", "8,4,mixed_3_4", "--adapter-path", half / "streams", "--json"))
    assert {path: path.stat().st_mtime_ns for path in half.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert [row["bits"] for row in rows] == [
        "16 bits, as it comes",
        "8 bits",
        "4 bits",
        "mixed_3_4",
    ]
    for row in rows:
        methods = [way["method"] for way in row["ways"]]
        assert methods == ["mlx_lm", "the rule", *SHAPES]
        assert all(way["same_output_as_plain"] == way["items"] == 2 for way in row["ways"])
        assert all(row[shape] >= 1 for shape in SHAPES)
    origin, eight, four, _ = rows
    assert (origin["same_tokens"], origin["same_texts"]) == (1.0, 2)
    assert eight["same_tokens"] > four["same_tokens"]
    sizes = [row["disk_bytes"] for row in rows]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]
    # Of the model that convert would have written, by mlx_lm's own functions.
    convert_base(half / "base", tmp_path / "made", Quantization(4))
    model, tokenizer = load_plain(str(tmp_path / "made"))
    model.set_dtype(mx.float32)
    total, count = 0.0, 0
    for line in PROMPTS.splitlines():
        ids = mx.array(tokenizer.encode(line))
        scores = mx.log(mx.softmax(model(ids[None, :-1])[0], axis=-1))
        total += sum(scores[i, int(token)].item() for i, token in enumerate(ids[1:]))
        count += ids.size - 1
    assert four["perplexity"] == pytest.approx(float(mx.exp(mx.array(-total / count))), rel=1e-3)
    assert four["disk_bytes"] == pytest.approx(
        sum(tensor.nbytes for tensor in mx.load(str(tmp_path / "made/model.safetensors")).values())
    )


def test_the_answer_comes_in_words_first(run, tmp_path):
    result = command_line.succeeded(run("--bits", "8", "--output", "kept"))
    question, _, origin, _, own, eight, *_ = result.stdout.splitlines()
    assert question == "What do fewer bits cost, and what do drafts bring there?"
    assert origin.endswith("comes in 16 bits, with which the other rows are compared.")
    assert own.startswith("- As it comes, drafting is ")  # by lookup alone
    assert eight.startswith("- 8 bits: ") and "% of the tokens stay the same" in eight
    assert "\n8 of 8 texts are those of plain decoding at the same bits.\n" in result.stdout
    (path,) = (tmp_path / "kept").glob("quantization-*.md")
    assert result.stdout.strip() == path.read_text().strip()


def test_an_origin_of_4_bits_is_said_to_be_one(run, tmp_path):
    packed = tiny_llama_directory(tmp_path / "packed", bits=4, intermediate_size=128)
    result = command_line.succeeded(run("--model", packed, "--bits", "8"))
    assert "packed comes in 4 bits: what these lost of 16 is not known here." in result.stdout
    first = next(line for line in result.stdout.splitlines() if line.startswith("| 4 bits"))
    assert first.startswith("| 4 bits, as it comes | ")


def test_streams_that_take_part_in_the_text(run, half):
    """One pass over a text does not say what the model with its streams would write."""
    rows = rows_of(run("--bits", "8", "--adapter-path", half / "shared", "--json"))
    for row in rows:
        assert (row["perplexity"], row["same_tokens"]) == (None, None)
        plainly, *ours = row["ways"]
        assert [way["method"] for way in ours] == ["the rule", *SHAPES]
        assert all(way["same_output_as_plain"] == 2 for way in ours)
        assert plainly["same_output_as_plain"] == 0


def test_a_wrong_draft_that_was_accepted_is_noticed(run, half, monkeypatch):
    """The command ends with exit code 1 and says at which bits, by which way."""
    decode = runner.timed_run

    def planted(responses, started):
        found = decode(responses, started)
        if found.drafted:
            found.tokens[-1] += 1
        return found

    monkeypatch.setattr(runner, "timed_run", planted)
    result = run("--bits", "8", "--adapter-path", half / "streams")
    assert result.exit_code == 1
    assert "error: 16 bits, as it comes, " in result.stderr
    assert ": 2 of 2 texts differ from plain decoding, expected none" in result.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--bits", "5"), "unknown bits '5', expected one of 8, 4, mixed_2_6"),
        (("--prompts", "nowhere.txt"), "nowhere.txt"),
        (("--output", "mine.txt"), "--output mine.txt is no directory"),
    ],
)
def test_bad_input_is_one_sentence(run, flags, sentence):
    assert sentence in command_line.refusal(run(*flags))


def test_what_cannot_be_quantized_is_refused_before_anything_is_measured(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(quantization, "measure", None)
    narrow = tiny_llama_directory(tmp_path / "narrow", hidden_size=32, intermediate_size=96)
    refused = command_line.refusal(run("--model", narrow, "--bits", "8"))
    assert "no layer's width is a multiple of the group size 64" in refused
