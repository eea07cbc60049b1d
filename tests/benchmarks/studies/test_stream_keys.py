"""The study of the keys that streams attend to."""

import json

import mlx.core as mx
import numpy as np
import pytest
from random_models import assert_close

from benchmarks.studies import stream_keys
from benchmarks.studies.stream_keys import HEAD_DIM, all_keys, best_keys


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_selected_keys_equal_attention_to_those_of_greatest_weight(kv_heads):
    prefix, count, behind = 40, 7, 3
    shape = 2, 1, kv_heads, prefix + behind, HEAD_DIM
    keys, values = mx.random.normal(shape, key=mx.random.key(0))
    query = mx.random.normal((1, 8, 1, HEAD_DIM), key=mx.random.key(1))
    queries = mx.random.normal((1, 8, 2, HEAD_DIM), key=mx.random.key(2))
    found = np.array(best_keys(query, queries, keys, values, prefix, count))
    group = 8 // kv_heads
    for kv in range(kv_heads):
        heads = range(kv * group, (kv + 1) * group)
        k, v = np.array(keys[0, kv]), np.array(values[0, kv])
        weights = sum(softmax(np.array(query[0, head]) @ k[:prefix].T / 8) for head in heads)[0]
        kept = [*np.argsort(-weights)[:count].tolist(), *range(prefix, prefix + behind)]
        for head in heads:
            q = np.array(queries[0, head])
            assert_close(found[0, head], softmax(q @ k[kept].T / 8) @ v[kept])
    every = all_keys(queries, keys, values)
    assert_close(best_keys(query, queries, keys, values, prefix, prefix), every)


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_the_table_of_selected_keys(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stream_keys, "CONTEXTS", (80,))
    stream_keys.main(keys=8, msa_layers=2, runs=1, output=tmp_path)
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["kv_heads"], row["context"]) for row in rows] == [(8, 80), (2, 80)]
    assert "| 8 | 80 |" in capsys.readouterr().out
