"""Random draft heads: tensors in published layouts, and their forwards as formulas in numpy.

``HEADS`` has, by name, the base of a head (of ``random_models.BASES``) and a function of a random
generator and the model. It returns the tensors by name; a function of the text and a path of drafts
behind it, which returns the logits of the next token and the token of each; and further arguments
of ``write``.
"""

import json
from functools import partial

import mlx.core as mx
import numpy as np
from random_models import VOCAB_SIZE, speculative_model

from benchmarks.rivals.heads import mounted

HIDDEN = 32
ALL = range(VOCAB_SIZE)


def normal(rng, *shape, scale=None):
    """Values whose products with rows of standard deviation 1 have about that deviation."""
    return rng.normal(0, scale or shape[-1] ** -0.5, shape).astype(np.float32)


def write(directory, tensors, config=None):
    """Write tensors (numpy arrays by name) as one safetensors file, and ``config.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {name: mx.array(tensor) for name, tensor in tensors.items()}
    mx.save_safetensors(str(directory / "model.safetensors"), arrays)
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def model_with_head(name, directory):
    """A random base with a random head of ``HEADS`` and, second, the formula of its logits."""
    base, make = HEADS[name]
    model = speculative_model(base, seed=1)
    model.streams = None
    tensors, logits_of, further = make(np.random.default_rng(3), model)
    model.mount_head(mounted(write(directory, tensors, **further), model))
    return model, logits_of


def silu(x):
    return x / (1 + np.exp(-x))


def last_hidden(model, text):
    """The target's rows behind the final norm, of all tokens but the last, which is the root."""
    return np.array(model.model.model(mx.array([text[:-1]]))[0])


def lm_head(model):
    """The target's LM head (vocab, h)."""
    inner = model.model
    weight = inner.lm_head if "lm_head" in inner else inner.model.embed_tokens
    return np.array(weight.weight)


# Medusa: z = H, z += silu(W z + b), head ------------------------------------------------------

MEDUSA_NAMES = {
    "own": ("{i}.{j}.linear.{part}", "{i}.{layers}.weight"),
    "whole model's": ("medusa_head.{i}.{j}.linear.{part}", "medusa_head.{i}.{layers}.weight"),
    "vLLM's": ("blocks.{i}.layers.{j}.{part}", "lm_heads.{i}.weight"),
    "vLLM's in a model": (
        "medusa_heads.blocks.{i}.layers.{j}.{part}",
        "medusa_heads.lm_heads.{i}.weight",
    ),
}


def medusa(rng, model, *, names="own", heads=3, layers=1, own=True, bias=True, tokens=None):
    """Medusa's heads; vLLM's may have LM heads of all tokens and a map of those to draft."""
    layer, head = MEDUSA_NAMES[names]
    tensors, further = {}, {}
    for i in range(heads):
        for j in range(layers):
            tensors[layer.format(i=i, j=j, part="weight")] = normal(rng, HIDDEN, HIDDEN)
            if bias:
                tensors[layer.format(i=i, j=j, part="bias")] = normal(rng, HIDDEN, scale=0.3)
        if own:
            rows = VOCAB_SIZE if tokens != "cut" else 60
            tensors[head.format(i=i, layers=layers)] = normal(rng, rows, HIDDEN, scale=0.4)
    drafted = np.array(ALL)
    if tokens is not None:
        drafted = rng.choice(VOCAB_SIZE, 60, replace=False)
        prefix = head.removesuffix("lm_heads.{i}.weight")  # tokens are a part of vLLM's form alone
        tensors[f"{prefix}token_map"] = drafted.astype(np.int32)

    def logits_of(text, path):
        i, z = len(path), last_hidden(model, text)[-1]
        for j in range(layers):
            weight = tensors[layer.format(i=i, j=j, part="weight")]
            z = z + silu(weight @ z + (tensors[layer.format(i=i, j=j, part="bias")] if bias else 0))
        weight = tensors[head.format(i=i, layers=layers)] if own else lm_head(model)
        return (weight[drafted] if tokens == "all" else weight) @ z, drafted

    return tensors, logits_of, further


# A Llama layer over whole sequences -----------------------------------------------------------


def rms_norm(x, weight, epsilon=1e-5):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * weight


def rotated(x, positions, theta):
    """Rotary embedding of (rows, heads, d), pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def attention(x, tensors, name, positions, sees, theta, heads=4):
    """Attention of all rows (rows, width), ``sees`` (rows, rows) bool; KV heads as the keys say."""

    def projected(part, rotate):
        rows = x @ tensors[f"{name}{part}_proj.weight"].T
        rows = rows.reshape(len(x), -1, 8)
        return rotated(rows, positions, theta) if rotate else rows

    queries, keys, values = (projected(*one) for one in (("q", True), ("k", True), ("v", False)))
    group = heads // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", queries, keys) / np.sqrt(8)
    scores = np.where(sees, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", weights, values).reshape(len(x), -1)
    return mixed @ tensors[f"{name}o_proj.weight"].T


def mlp(x, tensors, name):
    gate, up = (x @ tensors[f"{name}{part}_proj.weight"].T for part in ("gate", "up"))
    return (silu(gate) * up) @ tensors[f"{name}down_proj.weight"].T


def layer_tensors(rng, name, *, width=HIDDEN, kv_heads=2, inner=48):
    """The weights of a layer's attention, of heads of 8, and of its MLP."""
    shapes = {
        "self_attn.q_proj": (HIDDEN, width),
        "self_attn.k_proj": (8 * kv_heads, width),
        "self_attn.v_proj": (8 * kv_heads, width),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (inner, HIDDEN),
        "mlp.up_proj": (inner, HIDDEN),
        "mlp.down_proj": (HIDDEN, inner),
    }
    scale = {"self_attn.q_proj": 4 * width**-0.5}  # so that attention is not the mean
    return {
        f"{name}{part}.weight": normal(rng, *shape, scale=scale.get(part))
        for part, shape in shapes.items()
    }


# Hydra: z = R u + r + silu(L u + l) of u = [P; E(x); E(c_1); ..], further layers, head -----------


def hydra(rng, model, *, prefix=False, heads=3, layers=2, own=True):
    """Hydra's heads; with ``prefix`` Hydra++'s, whose modules lie behind dropout."""
    tensors = {}
    first = 1 if prefix else 0
    step = 1 + first
    for i in range(heads):
        for part in ("linear", "res_connection"):
            name = f"hydra_mlp.{i}.{first}.{part}"
            tensors[f"{name}.weight"] = normal(rng, HIDDEN, (i + 2) * HIDDEN)
            tensors[f"{name}.bias"] = normal(rng, HIDDEN, scale=0.3)
        for j in range(1, layers):
            name = f"hydra_mlp.{i}.{first + j * step}.linear"
            tensors[f"{name}.weight"] = normal(rng, HIDDEN, HIDDEN)
            tensors[f"{name}.bias"] = normal(rng, HIDDEN, scale=0.3)
        if own:
            name = f"hydra_lm_head.{i}" + (".1" if prefix else "")
            tensors[f"{name}.weight"] = normal(rng, VOCAB_SIZE, HIDDEN, scale=0.4)
            tensors[f"{name}.bias"] = normal(rng, VOCAB_SIZE, scale=0.5)
    block = "prefix_embeding_layer.layers.0."
    if prefix:
        tensors |= layer_tensors(rng, block)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}{name}.weight"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        norm = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        tensors["prefix_embeding_layer.norm.weight"] = norm
        unused = np.zeros((VOCAB_SIZE, HIDDEN), np.float32)
        tensors["prefix_embeding_layer.embed_tokens.weight"] = unused

    def hidden(text):
        rows = last_hidden(model, text)
        if not prefix:
            return rows[-1]
        sees = np.tri(len(rows), dtype=bool)
        normed = rms_norm(rows, tensors[f"{block}input_layernorm.weight"])
        args = normed, tensors, f"{block}self_attn.", np.arange(len(rows)), sees, 10000.0
        rows = rows + attention(*args)
        normed = rms_norm(rows, tensors[f"{block}post_attention_layernorm.weight"])
        rows = rows + mlp(normed, tensors, f"{block}mlp.")
        return rms_norm(rows, tensors["prefix_embeding_layer.norm.weight"])[-1]

    def logits_of(text, path):
        i, embedding = len(path), np.array(model.model.model.embed_tokens.weight)
        u = np.concatenate([hidden(text), *embedding[[text[-1], *path]]])
        name = f"hydra_mlp.{i}.{first}."
        mapped, z = (
            tensors[f"{name}{part}.weight"] @ u + tensors[f"{name}{part}.bias"]
            for part in ("linear", "res_connection")
        )
        z = z + silu(mapped)
        for j in range(1, layers):
            name = f"hydra_mlp.{i}.{first + j * step}.linear"
            z = z + silu(tensors[f"{name}.weight"] @ z + tensors[f"{name}.bias"])
        name = f"hydra_lm_head.{i}" + (".1" if prefix else "")
        if not own:
            return lm_head(model) @ z, ALL
        return tensors[f"{name}.weight"] @ z + tensors[f"{name}.bias"], ALL

    return tensors, logits_of, {"config": {"hydra_num_layers": layers, "grounded_heads": True}}


# EAGLE: rows (f_i, x_{i+1}), whose output is the next drafted row's f -----------------------------


def boundary(model, text, number):
    """The target's hidden states (rows, h) at the input of a layer, or behind the last one."""
    hidden = model.model.model.embed_tokens(mx.array([text[:-1]]))
    for layer in model.layers[:number]:
        hidden = layer(hidden, "causal" if hidden.shape[1] > 1 else None, None)
    return np.array(hidden[0])


def recurrence(layer, features, text, path):
    """The output of the last row behind a text and drafts, by a layer over whole sequences.

    Args:
        layer: function of the rows' tokens and features (rows, h); returns their outputs.
        features: (rows, h) of all tokens of the text but the last one.
        text, path: token ids.
    """
    output = layer(text[1:], features)
    for number in range(len(path)):
        features = np.concatenate([features, output[-1:]])
        output = layer([*text[1:], *path[: number + 1]], features)
    return output[-1]


def eagle(rng, model, *, bias=True, theta=None, wrapped=False):
    """EAGLE's layer, of two KV heads."""
    tensors = layer_tensors(rng, "layers.0.")
    norm = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    tensors["layers.0.post_attention_layernorm.weight"] = norm
    tensors["fc.weight"] = normal(rng, HIDDEN, 2 * HIDDEN)
    tensors["embed_tokens.weight"] = np.zeros((VOCAB_SIZE, HIDDEN), np.float32)
    if bias:
        tensors["fc.bias"] = normal(rng, HIDDEN, scale=0.3)
    embedding = np.array(model.model.model.embed_tokens.weight)

    def layer(tokens, features):
        a = np.concatenate([embedding[tokens], features], axis=1) @ tensors["fc.weight"].T
        a = a + tensors["fc.bias"] if bias else a
        args = tensors, "layers.0.self_attn.", np.arange(len(a)), np.tri(len(a), dtype=bool)
        y = a + attention(a, *args, theta or 10000.0)
        return y + mlp(rms_norm(y, norm, 1e-6), tensors, "layers.0.mlp.")

    def logits_of(text, path):
        output = recurrence(layer, last_hidden(model, text), text, path)
        return lm_head(model) @ output, ALL

    config = layer_config() | ({"rope_theta": theta} if theta else {})
    config = {"model_type": "eagle", "model": config} if wrapped else config
    return tensors, logits_of, {"config": config}


def layer_config():
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return {"model_type": "llama", "vocab_size": VOCAB_SIZE, "rms_norm_eps": 1e-6, **sizes, **heads}


def eagle3(
    rng, model, *, name="midlayer", ids=None, drafted=None, own_embedding=False, config=None
):
    """EAGLE-3's layer.

    Args:
        rng: numpy generator.
        model: the target.
        name: of the layer.
        ids: the boundaries; ``None``: the authors' three.
        drafted: number of tokens that are drafted; ``None``: all.
        own_embedding: whether it has one.
        config: function that makes its ``config.json`` of the layer's.
    """
    ids = ids or [2, len(model.layers) // 2, len(model.layers) - 3]
    config = config(layer_config()) if config else layer_config()
    tensors = layer_tensors(rng, f"{name}.", width=2 * HIDDEN)
    norms = [f"{name}.{n}" for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")]
    for norm_name in (*norms, "norm"):
        tensors[f"{norm_name}.weight"] = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    tensors["fc.weight"] = normal(rng, HIDDEN, len(ids) * HIDDEN)
    tensors["lm_head.weight"] = normal(rng, drafted or VOCAB_SIZE, HIDDEN, scale=0.4)
    tokens = np.array(ALL)
    if drafted:
        tokens = np.sort(rng.choice(VOCAB_SIZE, drafted, replace=False))
        tensors["d2t"] = tokens - np.arange(drafted)
        tensors["t2d"] = np.isin(ALL, tokens)
    embedding = np.array(model.model.model.embed_tokens.weight)
    if own_embedding:
        embedding = tensors["embed_tokens.weight"] = normal(rng, VOCAB_SIZE, HIDDEN, scale=1.0)
    if config.get("norm_before_fc"):
        weight = rng.uniform(0.5, 1.5, len(ids) * HIDDEN).astype(np.float32)
        tensors["input_norm.weight"] = weight
    if config.get("fc_norm"):
        for number in range(len(ids)):
            weight = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
            tensors[f"fc_norm.{number}.weight"] = weight

    def norm(x, part):
        return rms_norm(x, tensors[f"{part}.weight"], 1e-6)

    def features(text):
        states = [boundary(model, text, number) for number in ids]
        if config.get("fc_norm"):
            states = [norm(one, f"fc_norm.{number}") for number, one in enumerate(states)]
        beside = np.concatenate(states, axis=1)
        if config.get("norm_before_fc"):
            beside = norm(beside, "input_norm")
        return beside @ tensors["fc.weight"].T

    def layer(tokens, g):
        normed = norm(g, f"{name}.hidden_norm")
        u = np.concatenate([norm(embedding[tokens], f"{name}.input_layernorm"), normed], axis=1)
        residual = normed if config.get("norm_before_residual") else g
        args = tensors, f"{name}.self_attn.", np.arange(len(u)), np.tri(len(u), dtype=bool)
        y = residual + attention(u, *args, 10000.0)
        o = y + mlp(norm(y, f"{name}.post_attention_layernorm"), tensors, f"{name}.mlp.")
        return norm(o, "norm") if config.get("norm_output") else o

    def logits_of(text, path):
        o = recurrence(layer, features(text), text, path)
        o = o if config.get("norm_output") else norm(o, "norm")
        return tensors["lm_head.weight"] @ o, tokens

    return tensors, logits_of, {"config": config}


def speculators(**options):
    """A configuration in the format of ``speculators``."""
    return lambda layer: {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": 60,
        **options,
    }


def nested(layer):
    """A configuration whose ids are layers: outputs of 0, 1 and 2 are boundaries 1, 2 and 3."""
    return layer | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}


# Prompt tokens: the model's own rows behind the text, with embeddings of their own ---------------


class Prefixed:
    """A layer's cache that puts learned keys and values behind all others."""

    offset = 0

    def __init__(self, keys, values):
        self._prefix = keys, values

    def update_and_fetch(self, *new):
        return tuple(mx.concatenate(pair, axis=2) for pair in zip(new, self._prefix, strict=True))


def prompt_tokens(rng, model, *, count=3, learned=0):
    """PPD's; or BiTA's, which see as many learned keys and values in each layer."""
    name = "model.mask_tokens.weight" if learned else "prompt_embeddings"
    tensors = {name: normal(rng, count, HIDDEN, scale=1.0)}
    config = {"mask_num": count, "prompt_num": learned} if learned else {"num_exits": 1}
    layers = model.layers
    heads = layers[0].self_attn.n_kv_heads
    prefix = normal(rng, learned, 2 * len(layers) * heads * 8, scale=1.0)
    if learned:
        tensors["model.prefix_encoder.embedding.weight"] = prefix
    parts = prefix.reshape(learned, len(layers), 2, heads, 8).transpose(1, 2, 3, 0, 4)

    def logits_of(text, path):
        inner = model.model.model
        rows = [inner.embed_tokens(mx.array(text[:-1])), mx.array(tensors[name])]
        hidden, main = mx.concatenate(rows)[None], len(text) - 1
        of_prefix = np.repeat(np.arange(main + count)[:, None] >= main, learned, axis=1)
        mask = mx.array(np.concatenate([np.tri(main + count, dtype=bool), of_prefix], axis=1))
        for layer, (keys, values) in zip(layers, parts, strict=True):
            hidden = layer(hidden, mask, Prefixed(mx.array(keys[None]), mx.array(values[None])))
        last = np.array(inner.norm(hidden)[0, main:])
        return lm_head(model) @ last[len(path)], ALL

    return tensors, logits_of, {"config": config}


HEADS = {
    "eagle": ("grouped heads, tied", eagle),
    "eagle, another rope": ("one kv head, untied", partial(eagle, bias=False, theta=300.0)),
    "eagle, vLLM's configuration": ("llama3 rope", partial(eagle, wrapped=True)),
    "eagle3": ("grouped heads, tied", eagle3),
    "eagle3, some tokens": (
        "one kv head, untied",
        partial(eagle3, drafted=60, ids=[1, 2, 3], config=nested),
    ),
    "eagle3, speculators'": (
        "full heads, biases",
        partial(
            eagle3,
            name="layers.0",
            ids=[0, 4],
            drafted=60,
            own_embedding=True,
            config=speculators(
                norm_before_residual=True,
                norm_before_fc=True,
                eagle_aux_hidden_state_layer_ids=[0, 4],
            ),
        ),
    ),
    "eagle3.1, speculators'": (
        "llama3 rope",
        partial(eagle3, name="layers.0", config=speculators(norm_output=True, fc_norm=True)),
    ),
    "ppd": ("one kv head, untied", prompt_tokens),
    "bita": ("grouped heads, tied", partial(prompt_tokens, learned=4)),
    "medusa, own heads": ("grouped heads, tied", medusa),
    "medusa, the base's head": ("one kv head, untied", partial(medusa, own=False, layers=2)),
    "medusa, the base's tied head": ("sliding windows", partial(medusa, own=False, heads=2)),
    "medusa of a whole model": ("llama3 rope", partial(medusa, names="whole model's")),
    "medusa, vLLM's": (
        "full heads, biases",
        partial(medusa, names="vLLM's", layers=2, bias=False, tokens="all"),
    ),
    "hydra": ("one kv head, untied", hydra),
    "hydra, the base's head": ("sliding windows", partial(hydra, own=False, layers=1)),
    "hydra++": ("grouped heads, tied", partial(hydra, prefix=True, layers=3)),
    "medusa, vLLM's, cut": ("grouped heads, tied", partial(medusa, names="vLLM's", tokens="cut")),
    "medusa, vLLM's in a model": (
        "one kv head, untied",
        partial(medusa, names="vLLM's in a model", tokens="cut"),
    ),
}
