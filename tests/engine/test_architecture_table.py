"""The columns of the table of architectures that ``test_architectures`` leaves open."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from architecture_models import CASES, VOCAB_SIZE, mlx_lm_caches, pair
from kv_cases import CASES as KV_CASES
from mlx_lm.generate import generate_step
from random_models import Oracle, random_prompt, tokens_of
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import tiny_streams, tiny_tokenizer

from specstream_mlx.hardware.weights import hold_weights
from specstream_mlx.loading import SpeculativeModel, read_config, read_model
from specstream_mlx.models.architectures import ARCHITECTURES
from specstream_mlx.models.streams import Streams

PROMPT = random_prompt(21, vocab_size=VOCAB_SIZE)
BUDGETS = ({}, {"max_nodes": 8})
TABLE = Path(__file__).parents[2] / "specstream_mlx" / "models" / "README.md"


def shared_model(case):
    """The case's model with random streams that its main stream sees."""
    found = pair(case).model
    config = replace(found.streams.config, mode="shared", stream_mlp="base", stream_adapter_rank=0)
    streams = Streams(config)
    streams.load_weights(list(tiny_streams(config, seed=6).items()))
    return SpeculativeModel(found.model, found.config, found.path, streams=streams)


@pytest.mark.parametrize("case", CASES)
def test_shared_trees_write_what_one_token_a_step_writes(case, monkeypatch):
    model = shared_model(case)
    expected = tokens_of(model, PROMPT, 24, speculation=False)
    for budget in BUDGETS:
        oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
        assert tokens_of(model, PROMPT, 20, **budget)[:20] == expected[:20], budget
        assert oracle.longest >= 2


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", CASES)
def test_quantized_it_is_lossless_too(case, bits, tmp_path, monkeypatch):
    """Converted, held packed as on a Mac: one token a step is mlx_lm's text, and so are trees."""
    found = pair(case).model
    source = tmp_path / "source"
    shutil.copytree(found.path, source)
    tiny_tokenizer().save_pretrained(source)
    convert_base(source, tmp_path / "mlx", bits=bits, group_size=32)
    model, held = hold_weights(read_model(tmp_path / "mlx")[0], "packed")
    assert held.stored_bytes < 0.6 * sum(f.stat().st_size for f in source.glob("*.safetensors"))
    config = read_config(tmp_path / "mlx")
    quantized = SpeculativeModel(model, config, tmp_path / "mlx", streams=found.streams)
    expected = tokens_of(quantized, PROMPT, 24, speculation=False)
    caches = mlx_lm_caches(quantized)
    if caches is not None:
        steps = generate_step(mx.array(PROMPT), model, max_tokens=24, prompt_cache=caches)
        assert [token for token, _ in steps] == expected
    for budget in BUDGETS:
        oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
        assert tokens_of(quantized, PROMPT, 20, **budget)[:20] == expected[:20], budget
        assert oracle.longest >= 2


def table_rows():
    """``model_type`` and cells of the table."""
    for line in TABLE.read_text().splitlines():
        if found := re.match(r"\| `(\w+)` \|", line):
            yield found[1], [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_lists_what_is_tested():
    rows = dict(table_rows())
    assert set(rows) == set(ARCHITECTURES)
    for model_type, (_, _, *cells, kv_cache) in rows.items():
        assert cells == ["yes"] * 5
        cases = {pair(case).model.config["model_type"] for case in KV_CASES}
        assert (kv_cache == "yes") == (model_type in cases), model_type
    for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", TABLE.read_text()):
        assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()
