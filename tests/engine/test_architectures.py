"""Every tested architecture: each column of the table in ``specstream_mlx/models/README.md``."""

import re
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from architecture_models import CASES, VOCAB_SIZE, mlx_lm_caches, pair, with_streams
from mlx_lm.generate import generate_step
from random_models import (
    Oracle,
    assert_close,
    assert_lossless,
    chain_of,
    random_prompt,
    random_tree,
    take,
    tokens_of,
)
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import tokenizer_ending

from specstream_mlx import stream_generate
from specstream_mlx.hardware.weights import hold_weights
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.models.architectures import ARCHITECTURES, REFUSED
from specstream_mlx.models.fingerprint import fingerprint

PROMPT = random_prompt(21, vocab_size=VOCAB_SIZE)
TABLE = Path(__file__).parents[2] / "specstream_mlx" / "models" / "README.md"


def test_every_architecture_has_a_case_and_a_row_of_the_table():
    assert {pair(case).model.config["model_type"] for case in CASES} == set(ARCHITECTURES)
    assert not set(ARCHITECTURES) & set(REFUSED)
    table = TABLE.read_text()
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert {row[0].strip("| `") for row in rows} == set(ARCHITECTURES)
    assert all(row[2:-1] == ["yes"] * 5 for row in rows)
    for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", table):
        assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text()


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case):
    tokens = random_prompt(40, seed=1, vocab_size=VOCAB_SIZE)
    expected = pair(case).logits(tokens)
    assert expected.std() >= 1
    for start in (0, 30):
        result = take(pair(case).decoder_after(tokens[:start]), chain_of(tokens[start:]), "none")
        assert_close(result.logits, expected[start:])


@pytest.mark.parametrize("case", CASES)
def test_a_tree_is_its_paths(case):
    tree = random_tree(np.random.default_rng(2), PROMPT[-1], depth=4, width=2, truth=[5, 6, 7, 8])
    paths = [[*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()] for node in range(len(tree))]
    expected = np.stack([pair(case).logits(path)[-1] for path in paths])
    for placement in ("none", "nodes"):
        result = take(pair(case).decoder_after(PROMPT[:-1]), tree, placement)
        assert_close(result.logits, expected)
    result = take(pair(case).decoder_after(PROMPT[:-1]), tree, "nodes", max_nodes=6)
    assert_close(result.logits, expected[np.array(result.kept)])


@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_mlx_lm(case, monkeypatch):
    found_pair, count = pair(case), 28
    expected = found_pair.continuation(PROMPT, count + 6)
    assert len(set(expected)) >= 5
    caches = mlx_lm_caches(found_pair.model)
    if caches is not None:
        steps = generate_step(
            mx.array(PROMPT), found_pair.model.model, max_tokens=count, prompt_cache=caches
        )
        assert [token for token, _ in steps] == expected[:count]
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(found_pair.model, PROMPT, count, max_nodes=12)
    assert_lossless(found_pair.model.model, PROMPT, found, expected)
    assert oracle.longest >= 3


def test_learned_positions_end_the_text():
    """OPT's table has 512 rows; the text stops where the last one has been read."""
    found = pair("OPT")
    prompt = random_prompt(506, vocab_size=VOCAB_SIZE)
    expected = found.continuation(prompt, 7)
    for speculation in (True, False):
        options = {"max_tokens": -1, "speculation": speculation}
        responses = list(stream_generate(found.model, tokenizer_ending(), prompt, **options))
        assert responses[-1].finish_reason == "length"
        assert [response.token for response in responses] == expected


def assert_trees_write(model, expected, max_nodes, monkeypatch):
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    assert tokens_of(model, PROMPT, 20, max_nodes=max_nodes)[:20] == expected[:20]
    assert oracle.longest >= 2


@pytest.mark.parametrize("case", CASES)
def test_shared_trees_write_what_one_token_a_step_writes(case, monkeypatch):
    model = with_streams(case, 6, mode="shared", stream_mlp="base", stream_adapter_rank=0)
    expected = tokens_of(model, PROMPT, 24, speculation=False)
    for max_nodes in (None, 8):
        assert_trees_write(model, expected, max_nodes, monkeypatch)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", CASES)
def test_quantized_it_is_lossless_too(case, bits, tmp_path, monkeypatch):
    """Converted, held packed as on a Mac: one token a step is mlx_lm's text, and so are trees."""
    found = pair(case).model
    convert_base(found.path, tmp_path / "mlx", Quantization(bits, 32))
    model, _ = hold_weights(read_model(tmp_path / "mlx")[0], "packed")
    config = read_config(tmp_path / "mlx")
    assert fingerprint(config) == fingerprint(found.config)
    quantized = SpeculativeModel(model, config, tmp_path / "mlx", streams=found.streams)
    expected = tokens_of(quantized, PROMPT, 24, speculation=False)
    caches = mlx_lm_caches(quantized)
    if caches is not None:
        steps = generate_step(mx.array(PROMPT), model, max_tokens=24, prompt_cache=caches)
        assert [token for token, _ in steps] == expected
    assert_trees_write(quantized, expected, {4: None, 8: 8}[bits], monkeypatch)
