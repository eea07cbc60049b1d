"""The demonstration model's adapters as packages: their texts are MLX's, in half precision too."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import result_of, run
from demonstration_weights import needs_weights
from specstream_mlx.convert.to_coreml.contents import Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.verify import main as verify

from specstream_mlx.prompts import chat_prompt
from specstream_mlx.request import Request

pytestmark = needs_weights

QUESTION = "table trips(city, days, price): which city has days above 4?"
ANSWER = "SELECT city FROM trips WHERE days > 4"


@pytest.fixture(scope="module")
def sql(tmp_path_factory):
    package = tmp_path_factory.mktemp("bundled") / "x.mlpackage"
    sizes = ("--context", 128, "--nodes", 8)
    result = run("export-coreml", "--output", package, "--adapter", "sql", *sizes)
    assert result.exit_code == 0, result.output
    return package


@pytest.mark.slow  # half precision is the stricter one, below
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
def test_recorded_calls_stay_within_the_bound(sql):
    """In half precision, guess by guess; all adapters are of this kind (benchmarks have theirs)."""
    result = result_of(verify, sql, "-m", 4)
    assert result.exit_code == 0, result.output
