"""The demonstration model's adapters as packages: their texts are MLX's, in half precision too."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, result_of, run
from demonstration_weights import needs_weights
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.verify import main as verify

from specstream_mlx import bundled
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.request import Request

pytestmark = needs_weights

QUESTION = "table trips(city, days, price): which city has days above 4?"
ANSWER = "SELECT city FROM trips WHERE days > 4"


def export(output, *flags):
    return run("export-coreml", "--output", output, "--context", 128, "--nodes", 8, *flags)


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    package = tmp_path_factory.mktemp("bundled") / "x.mlpackage"
    result = export(package, "--adapter", "sql")
    assert result.exit_code == 0, result.output
    return package


def test_a_question_is_answered_as_by_mlx(sql):
    flags = ("--coreml", sql, "-p", QUESTION, "-m", 32, "--compare")
    result = run("generate", *flags)
    assert result.stdout == f"{ANSWER}\n"
    assert "Identical output: yes, compared with MLX in float32" in result.stderr


def test_a_question_is_answered_as_by_mlx_in_half_precision(sql):
    contents = Contents.read(sql)
    decoder, tokenizer = PackageDecoder(contents, Package(sql, "fp16")), contents.read_tokenizer()
    prompt = chat_prompt(tokenizer, QUESTION, decoder.adapter.prompt_template)
    request = Request(prompt, max_tokens=32, end_tokens=tokenizer.eos_token_ids)
    text = "".join(response.text for response in decoder.responses(tokenizer, request))
    assert text == ANSWER


@pytest.mark.slow
def test_recorded_calls_of_all_adapters_stay_within_the_bound(tmp_path):
    """One package for each, since a recording of all takes gigabytes."""
    for name in bundled.adapter_names():
        package = tmp_path / f"{name}.mlpackage"
        assert export(package, "--adapter", name).exit_code == 0
        result = result_of(verify, package)
        assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_rounded_offsets_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_WHOLE", 0.5)
    monkeypatch.setattr(weights, "_WORST", 0.5)
    sentence = refusal(export(tmp_path / "x.mlpackage", "--adapter", "sql"))
    assert "sql: in half precision the package prefers another token" in sentence
    assert not list(tmp_path.iterdir())
