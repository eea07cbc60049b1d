"""Speculative Streaming over a Llama written out in numpy: one row list, one explicit mask.

Float64; no cache, no tree, no shortcut: the independent reference of one
step as ARCHITECTURE.md has it.
"""

import math

import numpy as np
from mlx.utils import tree_flatten


def forward(model, config, tokens, streams=None, stream_from=0):
    """All logits of a sequence with streams beside its tokens from ``stream_from`` on.

    ``model`` is an mlx-lm Llama, LoRA layers included, with default RoPE. Returns main (n, vocab),
    streams {position: (gamma, vocab)}, early exit (n, vocab) or ``None``.
    """
    parameters = tree_flatten(streams.parameters()) if streams else []
    tensors = {name: _array(value) for name, value in parameters}
    settings = streams.config if streams else None
    x = _array(model.model.embed_tokens.weight)[tokens]
    rows = [(position, 0) for position in range(len(tokens))]
    early = None
    for number, layer in enumerate(model.layers):
        if settings and number == settings.first_msa_layer:
            if "pruner.down.weight" in tensors:
                mapped = _low_rank(x, tensors, "pruner")
                early = _head(model, _norm(x + mapped, model.model.norm))
            for position in range(stream_from, len(tokens)):
                for j in range(1, settings.num_streams + 1):
                    rows.append((position, j))
                    x = np.vstack([x, _seed(x[position], j, tensors, settings)])
        inner = _norm(x, layer.input_layernorm)
        x = x + _attention(layer, config, settings, rows, inner)
        inner = _norm(x, layer.post_attention_layernorm)
        out = _mlp(layer.mlp, inner)
        for index, (_, j) in enumerate(rows):
            if j and settings.stream_mlp != "base":
                adapted = _low_rank(inner[index], tensors, f"streams.adapters.{number}")
                out[index] = adapted + (out[index] if settings.stream_mlp != "adapter" else 0)
        x = x + out
    logits = _head(model, _norm(x, model.model.norm))
    main = logits[: len(tokens)]
    by_position = {}
    for row, values in zip(rows[len(tokens) :], logits[len(tokens) :], strict=True):
        by_position.setdefault(row[0], []).append(values)
    return main, {position: np.array(v) for position, v in by_position.items()}, early


def _sees(query, key, shared, window):
    """Whether row ``query`` = (position, stream) attends to row ``key``; stream 0 is main."""
    (position, j), (other, i) = query, key
    if i == 0:
        return position - window < other <= position
    return other == position and (i <= j or (j == 0 and shared))


def _attention(layer, config, settings, rows, x):
    attention, d = layer.self_attn, config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    queries = _linear(attention.q_proj, x).reshape(len(rows), heads, d)
    keys = _linear(attention.k_proj, x).reshape(len(rows), kv_heads, d)
    values = _linear(attention.v_proj, x).reshape(len(rows), kv_heads, d).copy()
    frequencies = config["rope_theta"] ** (-np.arange(d // 2) * 2 / d)
    for index, (position, j) in enumerate(rows):
        queries[index] = turned(queries[index], (position + j) * frequencies)
        keys[index] = turned(keys[index], (position + j) * frequencies)
        if j and settings.stream_init == "value_rotation":
            values[index] = turned(
                values[index], np.full(d // 2, settings.value_rotation_epsilon * j)
            )
    shared = settings is not None and settings.mode == "shared"
    window = config["sliding_window"] if layer.use_sliding else len(rows)
    mask = np.array([[_sees(query, key, shared, window) for key in rows] for query in rows])
    out = np.empty_like(queries)
    scores = [
        queries[:, head] @ keys[:, head // (heads // kv_heads)].T / math.sqrt(d)
        for head in range(heads)
    ]
    if settings is not None and settings.stream_keys:
        _select_keys(mask, rows, scores, settings.stream_keys)
    for head in range(heads):
        out[:, head] = softmax(scores[head], mask) @ values[:, head // (heads // kv_heads)]
    return _linear(attention.o_proj, out.reshape(len(rows), -1))


def softmax(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _select_keys(mask, rows, scores, count):
    """Streams see, among main rows, the ``count`` alone that their own main row weighs most."""
    main = sum(j == 0 for _, j in rows)
    weights = sum(softmax(each[:main, :main], mask[:main, :main]) for each in scores)
    for row, (position, j) in enumerate(rows):
        if j:
            seen = np.flatnonzero(mask[position, :main])
            left_out = sorted(seen, key=lambda key: -weights[position, key])[count:]
            mask[row, left_out] = False


def _seed(hidden, j, tensors, settings):
    if "streams.init.down.weight" in tensors:
        hidden = _low_rank(hidden, tensors, "streams.init")
    embeddings = tensors.get("streams.embeddings")
    return hidden if embeddings is None else hidden + embeddings[j - 1]


def turned(x, angles):
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _mlp(mlp, x):
    gate = _linear(mlp.gate_proj, x)
    return _linear(mlp.down_proj, gate / (1 + np.exp(-gate)) * _linear(mlp.up_proj, x))


def _low_rank(x, tensors, name):
    return x @ tensors[f"{name}.down.weight"].T @ tensors[f"{name}.up.weight"].T


def _linear(module, x):
    if "lora_a" in module:
        update = x @ _array(module.lora_a) @ _array(module.lora_b)
        return _linear(module.linear, x) + module.scale * update
    bias = _array(module.bias) if "bias" in module else 0
    return x @ _array(module.weight).T + bias


def _norm(x, module):
    scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + module.eps)
    return x / scale * _array(module.weight)


def _head(model, x):
    head = model.lm_head if "lm_head" in model else model.model.embed_tokens
    return x @ _array(head.weight).T


def _array(value):
    return np.array(value, np.float64)
