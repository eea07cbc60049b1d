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
from brute_force import softmax, turned
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
    inner = model.model
    weight = inner.lm_head if "lm_head" in inner else inner.model.embed_tokens
    return np.array(weight.weight)


# Medusa: z = H, z += silu(W z + b), head ------------------------------------------------------


def medusa(rng, model, *, heads=3, layers=1, own=True, prefix=""):
    tensors = {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{prefix}{i}.{j}.linear.weight"] = normal(rng, HIDDEN, HIDDEN)
            tensors[f"{prefix}{i}.{j}.linear.bias"] = normal(rng, HIDDEN, scale=0.3)
        if own:
            tensors[f"{prefix}{i}.{layers}.weight"] = normal(rng, VOCAB_SIZE, HIDDEN, scale=0.4)

    def logits_of(text, path):
        i, z = len(path), last_hidden(model, text)[-1]
        for j in range(layers):
            layer = f"{prefix}{i}.{j}.linear."
            z = z + silu(tensors[f"{layer}weight"] @ z + tensors[f"{layer}bias"])
        weight = tensors[f"{prefix}{i}.{layers}.weight"] if own else lm_head(model)
        return weight @ z, ALL

    return tensors, logits_of, {}


# A Llama layer over whole sequences -----------------------------------------------------------


def rms_norm(x, weight, epsilon=1e-5):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * weight


def rotated(x, positions, theta):
    """Rotary embedding of (rows, heads, d), pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    return turned(x, positions[:, None, None] * theta ** (-np.arange(half) / half))


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
    mixed = np.einsum("hij,jhd->ihd", softmax(scores, sees), values).reshape(len(x), -1)
    return mixed @ tensors[f"{name}o_proj.weight"].T


def mlp(x, tensors, name):
    gate, up = (x @ tensors[f"{name}{part}_proj.weight"].T for part in ("gate", "up"))
    return (silu(gate) * up) @ tensors[f"{name}down_proj.weight"].T


def layer_tensors(rng, name, *, width=HIDDEN, kv_heads=2, inner=48):
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


# Hydra: z = R u + r + silu(L u + l) of u = [H; E(x); E(c_1); ..], further layers, head -----------


def hydra(rng, model, *, heads=3, layers=2):
    tensors = {}

    def linear(name, rows, width, scale=None, bias=0.3):
        tensors[f"{name}.weight"] = normal(rng, rows, width, scale=scale)
        tensors[f"{name}.bias"] = normal(rng, rows, scale=bias)

    def through(name, x):
        return tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"]

    for i in range(heads):
        for part in ("linear", "res_connection"):
            linear(f"hydra_mlp.{i}.0.{part}", HIDDEN, (i + 2) * HIDDEN)
        for j in range(1, layers):
            linear(f"hydra_mlp.{i}.{j}.linear", HIDDEN, HIDDEN)
        linear(f"hydra_lm_head.{i}", VOCAB_SIZE, HIDDEN, 0.4, 0.5)

    def logits_of(text, path):
        i, embedding = len(path), np.array(model.model.model.embed_tokens.weight)
        hidden = last_hidden(model, text)[-1]
        u = np.concatenate([hidden, *embedding[[text[-1], *path]]])
        mapped = silu(through(f"hydra_mlp.{i}.0.linear", u))
        z = through(f"hydra_mlp.{i}.0.res_connection", u) + mapped
        for j in range(1, layers):
            z = z + silu(through(f"hydra_mlp.{i}.{j}.linear", z))
        return through(f"hydra_lm_head.{i}", z), ALL

    return tensors, logits_of, {"config": {"hydra_num_layers": layers, "grounded_heads": True}}


# EAGLE: rows (f_i, x_{i+1}), whose output is the next drafted row's f -----------------------------


def boundary(model, text, number):
    """The target's hidden states (rows, h) at the input of a layer, or behind the last one."""
    hidden = model.model.model.embed_tokens(mx.array([text[:-1]]))
    for layer in model.layers[:number]:
        hidden = layer(hidden, "causal" if hidden.shape[1] > 1 else None, None)
    return np.array(hidden[0])


def recurrence(layer, features, text, path):
    """The output of the last row after a text and drafts, by a layer over whole sequences.

    ``layer`` maps the rows' tokens and features (rows, h), those of all tokens but the last one.
    """
    output = layer(text[1:], features)
    for number in range(len(path)):
        features = np.concatenate([features, output[-1:]])
        output = layer([*text[1:], *path[: number + 1]], features)
    return output[-1]


def eagle(rng, model, *, bias=True, theta=None, wrapped=False):
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
    """EAGLE-3's layer, of the boundaries ``ids`` (by default the authors' three).

    ``drafted`` is the number of tokens that are drafted, ``config`` makes its ``config.json``.
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
    return lambda layer: {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": 60,
        **options,
    }


def nested(layer):
    """A configuration whose ids are layers: outputs of 0, 1 and 2 are boundaries 1, 2 and 3."""
    return layer | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}


# Prompt tokens: the model's own rows after the text, with embeddings of their own ----------------


def prompt_tokens(rng, model, *, count=3):
    embeddings = normal(rng, count, HIDDEN, scale=1.0)

    def logits_of(text, path):
        inner = model.model.model
        rows = [inner.embed_tokens(mx.array(text[:-1])), mx.array(embeddings)]
        hidden = mx.concatenate(rows)[None]
        for layer in model.layers:
            hidden = layer(hidden, "causal", None)
        return lm_head(model) @ np.array(inner.norm(hidden)[0, len(text) - 1 + len(path)]), ALL

    return {"prompt_embeddings": embeddings}, logits_of, {"config": {"num_exits": 1}}


PLACES = [0, 4]
ALTERED = speculators(
    norm_before_residual=True, norm_before_fc=True, eagle_aux_hidden_state_layer_ids=PLACES
)
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
            eagle3, name="layers.0", ids=[0, 4], drafted=60, own_embedding=True, config=ALTERED
        ),
    ),
    "eagle3.1, speculators'": (
        "llama3 rope",
        partial(eagle3, name="layers.0", config=speculators(norm_output=True, fc_norm=True)),
    ),
    "ppd": ("one kv head, untied", prompt_tokens),
    "medusa, own heads": ("grouped heads, tied", medusa),
    "medusa, the base's head": ("one kv head, untied", partial(medusa, own=False, layers=2)),
    "medusa of a whole model": ("llama3 rope", partial(medusa, prefix="medusa_head.")),
    "medusa, two layers": ("full heads, biases", partial(medusa, layers=2)),
    "hydra": ("one kv head, untied", hydra),
}
