"""The command line on a tiny random model: output, statistics, JSON, comparison, help."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from types import SimpleNamespace

import pytest
from command_line import generate, refusal, run
from specstream_mlx.benchmarks import runner
from tiny_gguf import tiny_gguf
from tiny_models import stream_adapter_directory, tiny_llama_directory
from transformers import LlamaForCausalLM

from specstream_mlx import load, stream_generate
from specstream_mlx.cli import comparison, doctor
from specstream_mlx.cli.comparison import ComparedDecoding
from specstream_mlx.drafting import rule
from specstream_mlx.drafting.step_costs import CostCurve, StepCosts

KEYS = {
    *("text", "finish_reason", "prompt_tokens", "generation_tokens", "target_calls"),
    *("accepted_length", "generation_tps", "peak_memory", "model", "adapter", "mode", "tree"),
    *("verify", "seed", "seen"),
}
COMPARED = {
    *("plain", "speedup", "speedup_range", "pairs", "dtype", "mlx_lm_dtype"),
    *("identical", "first_difference", "mlx_lm_by_itself"),
}


def test_text_on_stdout_and_statistics_on_stderr(base, streams):
    result = generate(base, "--adapter-path", streams)
    assert result.exit_code == 0
    assert result.stdout.strip()
    cut, rule, *statistics = result.stderr.splitlines()
    assert (cut, rule) == ("The text was cut off at --max-tokens 12", "==========")
    assert [line.split(":")[0] for line in statistics] == ["Prompt", "Generation", "Target calls"]
    assert "call reduction" in statistics[-1]
    more = generate(base, "--adapter-path", streams, "-v").stderr
    assert all(f"\n{name}: " in more for name in ("Peak memory", "Verify"))
    assert "\nTree: adaptive, from streams and lookup" in more
    (seen,) = re.findall(r"^Streams guessed in (?:all )?(\d+)", more, re.MULTILINE)
    values = json.loads(generate(base, "--adapter-path", streams, "--json").stdout)
    assert values["seen"]["steps"] == values["target_calls"] >= int(seen) > 0
    few = generate(base, "-v", "--compile", "--max-tokens", 2).stderr
    assert "\nSteps: 2 built by Python (few of their shape)\n" in few
    assert generate(base, "--quiet").stderr == f"{cut}\n"
    bare = generate(base, "--stop", result.stdout[3:6]).stderr
    assert bare.startswith("No streams are mounted, so only lookup may draft")
    assert cut not in bare


def test_comparison(base, streams, shared):
    """One pair of rates, their own ratio, how far the others are from it, and no third rate."""
    flags = ("--compare", "--tree-size", 8)  # no threshold, which random streams never reach
    values = json.loads(generate(base, "--adapter-path", shared, *flags, "--json").stdout)
    assert set(values) == KEYS | COMPARED
    assert (values["identical"], values["mode"]) == (True, "shared")
    assert set(values["plain"]) == {"text", "generation_tps"}
    result = generate(base, "--adapter-path", streams, *flags)
    assert "Identical output: yes, compared with plain mlx_lm in float32\n" in result.stderr
    assert "By itself mlx_lm computes" not in result.stderr
    assert "\nGeneration: 12 tokens\n" in result.stderr
    plain, ours = (
        float(re.search(rf"\n{name}: ([\d.]+) tokens-per-sec", result.stderr).group(1))
        for name in ("mlx_lm", "specstream-mlx")
    )
    shown = r"Speedup: ([\d.]+) \(the median pair of 5, ([\d.]+) to ([\d.]+); first token left out"
    speedup, low, high = map(float, re.search(shown, result.stderr).groups())
    assert speedup == pytest.approx(ours / plain, abs=0.006)
    assert low <= speedup <= high


def test_mlx_lm_on_the_file_s_own_weights_is_timed_on_a_cpu_if_asked_for(tmp_path, monkeypatch):
    """On a GPU it is always timed."""
    monkeypatch.setattr(runner, "_SECONDS", 0.1)
    packed = tiny_llama_directory(tmp_path / "packed", bits=4)
    flags = ("--weights", "expanded", "--compare")
    words = r"mlx_lm as a user runs it, packed weights, float32: [\d.]+ tokens-per-sec, "
    assert not re.search(words, generate(packed, *flags).stderr)
    assert re.search(words, generate(packed, *flags, "--as-stored").stderr)
    assert "--as-stored was given, expected with --compare" in refusal(
        generate(packed, "--as-stored")
    )
    monkeypatch.setattr(comparison.device, "backend", lambda: "metal")
    assert re.search(words, generate(packed, *flags).stderr)


def test_comparison_shows_the_first_difference_and_its_gap(base, monkeypatch):
    model, tokenizer = load(base)
    prompt = tokenizer.encode("hello there")
    ours = list(stream_generate(model, tokenizer, prompt, 12))
    place, right = 3, ours[3].token
    wrong = (right + 1) % model.config["vocab_size"]
    plain = ComparedDecoding.plain_responses

    def responses(request):
        for number, response in enumerate(plain(request)):
            if number == place:
                response.token = wrong
            yield response

    monkeypatch.setattr(ComparedDecoding, "plain_responses", responses)
    flags = ("--compare", "--ignore-chat-template")
    found = json.loads(generate(base, *flags, "--json").stdout)["first_difference"]
    scores = ours[place].logprobs
    gap = (scores[right] - scores[wrong]).item()
    assert found == {"position": 4, "gap": pytest.approx(gap, rel=1e-3)}
    assert "Identical output: no (from token 4 on, " in generate(base, *flags).stderr


def test_show_drafts_keeps_the_text(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", residual_scale=0.0)
    streams = stream_adapter_directory(tmp_path / "streams", base, scale=0.0)
    plain = generate(base, "--adapter-path", streams)
    marked = generate(base, "--adapter-path", streams, "--show-drafts")
    assert "[" in marked.stdout
    assert marked.stdout.replace("[", "").replace("]", "") == plain.stdout
    assert "Drafts: [accepted in one step]" in marked.stderr


def test_a_model_runs_as_it_was_published(base, tmp_path):
    """As transformers wrote it, and a GGUF file, which is repacked once."""
    source = LlamaForCausalLM.from_pretrained(base, dtype="float32")
    source.save_pretrained(shutil.copytree(base, tmp_path / "hf"))
    assert generate(tmp_path / "hf").stdout == generate(base).stdout
    file = tiny_gguf().write(tmp_path / "Tiny-Q4_1.gguf")
    first, second = generate(file), generate(file)
    assert first.exit_code == 0 and first.stdout == second.stdout
    assert first.stderr.startswith("Repacking Tiny-Q4_1.gguf once, to ")
    assert second.stderr.startswith("No streams are mounted")
    file.write_bytes(b"GGUF")
    assert str(file) in refusal(generate(file, "--quiet"))
    assert "none.gguf does not exist" in refusal(generate("some/none.gguf"))


def test_an_interrupt_and_a_closed_pipe(base):
    """The first ends with what was measured, the second quietly; both run at the same time."""
    command = [sys.executable, "-m", "specstream_mlx", "generate", "--model", str(base)]
    command += ["-p", "hi", "-m", str(10**6)]
    pipe = subprocess.PIPE
    interrupted, closed = (subprocess.Popen(command, stdout=pipe, stderr=pipe) for _ in range(2))
    interrupted.stdout.read(1)
    interrupted.send_signal(signal.SIGINT)
    closed.stdout.read(1)
    closed.stdout.close()
    stdout, stderr = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130
    assert b"Traceback" not in stderr
    assert stdout.endswith(b"\n")
    assert re.search(rb"\nGeneration: \d+ tokens, [\d.]+ tokens-per-sec\n", stderr)
    assert b"cut off" not in stderr
    assert closed.wait(timeout=60) == 1
    assert b"Traceback" not in closed.stderr.read()


def test_an_interrupted_text_is_one_whole_json_object(base, monkeypatch):
    responses = ComparedDecoding.responses

    def interrupted(request, progress=None):
        yield from islice(responses(request, progress), 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(ComparedDecoding, "responses", interrupted)
    result = generate(base, "--json")
    assert result.exit_code == 130
    values = json.loads(result.stdout)
    assert (values["finish_reason"], values["generation_tokens"]) == (None, 5)


def test_what_needs_no_model_is_quick():
    """Help, a list and mistakes do without MLX, locks and bars, and doctor without mlx_lm."""
    code = """
import sys
from specstream_mlx.cli import main
def end_of(line):
    try:
        main(line.split())
    except SystemExit as end:
        return end.code
    return 0
for line in ("--help", "generate --help", "adapters list", "adapters info proofread"):
    assert end_of(line) == 0, line
nowhere = "--model /nowhere"
for line in ("", "adapters", "benchmark", "write nosuch", "generate --adapter nosuch -p x",
             f"generate {nowhere} -p x", f"chat {nowhere}", f"train {nowhere} --adapter-path x",
             f"convert {nowhere} --mlx-path x", f"benchmark speedup {nowhere}", f"serve {nowhere}",
             f"doctor {nowhere}", "generate --model /nowhere.gguf -p x", "train --adapter-path x",
             "generate --prompt-cache-file /nowhere -p x", "generate --draft-head /nowhere -p x",
             "generate --draft-model /nowhere -p x", f"export-coreml {nowhere} --output x",
             "train --model some/one --prompts /nowhere --adapter-path x",
             "benchmark speedup --prompts /nowhere", "benchmark spec-bench --questions /nowhere",
             f"benchmark quantization {nowhere}", "benchmark quantization --prompts /nowhere"):
    assert end_of(line) == 2, line
assert not {"mlx.core", "filelock", "rich.progress"} & sys.modules.keys()
assert end_of("doctor") == 0
assert "mlx_lm" not in sys.modules
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("usage: specstream-mlx") >= 4
    mistakes = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert len(mistakes) == 20 and "error: " not in mistakes


def test_sampling_from_the_command_line(base, streams):
    """The seed that is named repeats a run, without drafts too."""
    flags = ("--adapter-path", streams, "--temp", 0.9, "--top-p", 0.95)
    flags += ("--repetition-penalty", 1.1, "--logit-bias", '{"5": -2}')
    result = generate(base, *flags)
    seed = re.search(r"Generation: 12 tokens, .*, seed (\d+)\n", result.stderr).group(1)
    again = generate(base, *flags, "--seed", seed, "--json", "--no-speculation")
    values = json.loads(again.stdout)
    assert f"{values['text']}\n" == result.stdout
    assert (values["verify"], values["seed"]) == ("keyed", int(seed))


def test_comparisons_of_sampled_text(base, streams):
    """mlx_lm writes the same text under the same seed, where the rule draws as it does."""
    flags = ("--adapter-path", streams, "--temp", 0.9, "--top-k", 40, "--seed", 3, "--compare")
    result = generate(base, *flags)
    assert "Identical output: yes, compared with plain mlx_lm" in result.stderr
    values = json.loads(generate(base, *flags, "--verify", "rejection", "--json").stdout)
    assert values["identical"] is None
    assert values["speedup"] > 0
    typical = generate(base, *flags, "--verify", "typical").stderr
    assert "Identical output: not compared" in typical and "LOSSY" in typical


def test_a_draft_model_of_the_same_vocabulary(base, tmp_path):
    """Given by its directory it drafts by default; with another tokenizer it is refused."""
    result = generate(base, "--draft-model", base, "--json", prompt="the report")
    assert json.loads(result.stdout)["tree"].endswith("lookup and draft-model")
    other = shutil.copytree(base, tmp_path / "other") / "tokenizer.json"
    tokenizer = json.loads(other.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    other.write_text(json.dumps(tokenizer))
    refused = refusal(generate(base, "--draft-model", other.parent))
    assert "has another vocabulary: token" in refused


def test_standard_input_is_text(base):
    result = run("generate", "--model", base, stdin=b"caf\xe9")
    assert "standard input is not UTF-8 text: byte 0xe9 at 3" in refusal(result)


def test_doctor_says_what_steps_of_the_model_take(base, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "not measured yet" in run("doctor", "--model", base).stdout
    timings = StepCosts(tmp_path / "costs.json", {}, ("plain", "none")).behind(0)
    points = {"plain": ((1, 0.02),), "none": ((1, 0.02), (2, 0.021), (4, 0.024), (8, 0.05))}
    timings.curve = CostCurve(points, 0.04, time.time())
    costs = SimpleNamespace(by_length=[timings])
    monkeypatch.setattr(rule, "history_of", lambda _: SimpleNamespace(costs=costs))
    [known] = json.loads(run("doctor", "--json", "--model", base).stdout)["step_costs"]
    assert known["plain_steps"]["none"] == {"1": 1, "2": 1.05, "4": 1.2, "8": 2.5, "16": 5}
    # Chains of 2, 4 and 4: (1 + .5) / 1.05, (1 + .7 + .49 + .343) / 1.2 and so on.
    assert [(tree["rows"], tree["speedup"]) for tree in known["trees"]] == [
        (4, 1.562),
        (4, 2.111),
        (4, 2.866),
    ]
    text = run("doctor", "--model", base).stdout
    assert "machine quiet (spread 4%); in plain steps of 20.0 ms:\n" in text
    assert "\n  lookup alone   rows 1: 1.00, 2: 1.05, 4: 1.20, 8: 2.50, 16: 5.00\n" in text
    assert " 70%: 4 rows, 2.11 times plain; " in text
    assert "steps            built by Python\n" in text
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "_TOKENS", 2)
    monkeypatch.setenv("SPECSTREAM_COMPILE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = run("doctor", "--model", base).stdout
    assert "\nsteps            compiled; of a text of 2 tokens: 2 built by Python (few of" in text


def test_doctor_shows_and_clears_caches_and_says_what_is_optional(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(doctor._EXTRAS, "nosuch", ("baking needs it", "bakery"))
    here = tmp_path / "specstream-mlx"
    kept = "adapters/mine/x", "servers/1.json"
    for name in ("models/m/model.safetensors", "weight-policy.json", *kept):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(bytes(2000))
    text = run("doctor").stdout
    assert f"caches           {here}: models 2.0 kB, weight-policy.json 2.0 kB\n" in text
    assert (
        "nosuch           not installed, optional: baking needs it, .venv/bin/pip install -e "
        in text
    )
    assert "missing: nosuch" not in text
    cleared = run("doctor", "--clear-caches").stderr
    assert cleared.startswith(f"removed models (2.0 kB) of {here}\nremoved weight-policy")
    assert {str(path.relative_to(here)) for path in here.glob("*/**/*") if path.is_file()} == {
        *kept
    }
    assert "caches" in run("doctor", "--clear-caches").stderr
