"""Random draft heads: tensors in published layouts, and their forwards as formulas.

``HEADS`` has, by name, the base of a head (of ``random_models.BASES``) and a function of a random
generator and the model. It returns the tensors by name; a function of the text and a path of drafts
after it, which returns the logits of the next token and the token of each; and ``config.json``.
"""

import json
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
import torch
from eagle3_in_torch import SIZES, TorchEagle3
from mlx.utils import tree_flatten
from mlx_lm.models.llama import ModelArgs, TransformerBlock
from random_models import LLAMA3, VOCAB_SIZE, speculative_model

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
    tensors, logits_of, config = make(np.random.default_rng(3), model)
    model.mount_head(mounted(write(directory, tensors, config), model))
    return model, logits_of


def assert_guesses(logits_of, text, step, model):
    """Compare the guesses of a step behind every path with those of the formula."""
    guesses = step.result.guesses()
    assert guesses.depth == model.head.config.num_streams
    paths, depths = [()], set()
    while paths:
        path = paths.pop()
        if not (found := guesses.after(path)):
            continue
        depths.add(len(path))
        logits, tokens = logits_of(text, path)
        expected = logits - np.logaddexp.reduce(logits)
        of_token = dict(zip(tokens, expected, strict=True))
        log_probs = [log_prob for _, log_prob in found]
        assert log_probs == pytest.approx([of_token[token] for token, _ in found], abs=1e-3)
        assert log_probs == pytest.approx(np.sort(expected)[::-1][: len(found)], abs=1e-3)
        paths += [(*path, token) for token, _ in found]
    assert depths == set(range(guesses.depth))


def silu(x):
    return x / (1 + np.exp(-x))


def last_hidden(model, text):
    """The target's rows after the final norm, of all tokens but the last, which is the root."""
    return np.array(model.model.model(mx.array([text[:-1]]))[0])


def embedding_of(model):
    return np.array(model.model.model.embed_tokens.weight)


def lm_head(model):
    return np.array(model.model.lm_head.weight) if "lm_head" in model.model else embedding_of(model)


# Medusa: z = H, z += silu(W z + b), head ------------------------------------------------------


def medusa(rng, model, *, heads=3, layers=1, own=True):
    tensors = {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = normal(rng, HIDDEN, HIDDEN)
            tensors[f"{i}.{j}.linear.bias"] = normal(rng, HIDDEN, scale=0.3)
        if own:
            tensors[f"{i}.{layers}.weight"] = normal(rng, VOCAB_SIZE, HIDDEN, scale=0.4)

    def logits_of(text, path):
        i, z = len(path), last_hidden(model, text)[-1]
        for j in range(layers):
            layer = f"{i}.{j}.linear."
            z = z + silu(tensors[f"{layer}weight"] @ z + tensors[f"{layer}bias"])
        return (tensors[f"{i}.{layers}.weight"] if own else lm_head(model)) @ z, ALL

    return tensors, logits_of, None


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
        i, hidden = len(path), last_hidden(model, text)[-1]
        u = np.concatenate([hidden, *embedding_of(model)[[text[-1], *path]]])
        mapped = silu(through(f"hydra_mlp.{i}.0.linear", u))
        z = through(f"hydra_mlp.{i}.0.res_connection", u) + mapped
        for j in range(1, layers):
            z = z + silu(through(f"hydra_mlp.{i}.{j}.linear", z))
        return through(f"hydra_lm_head.{i}", z), ALL

    return tensors, logits_of, {"hydra_num_layers": layers, "grounded_heads": True}


# EAGLE: rows (f_i, x_{i+1}), whose output is the next drafted row's f -----------------------------

LAYER = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "rms_norm_eps": 1e-6, "head_dim": 8}
LAYER |= {"hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 1}
LAYER |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def eagle(rng, model, *, bias=True, biased=()):
    """mlx_lm's layer over whole sequences, without its first norm."""
    block, tensors = TransformerBlock(ModelArgs.from_dict(LAYER)), {}
    for name, weight in tree_flatten(block.parameters()):
        drawn = rng.uniform(0.5, 1.5, HIDDEN) if weight.ndim == 1 else normal(rng, *weight.shape)
        sharp = 4 if "q_proj" in name else 1  # so that attention is not the mean
        tensors[f"layers.0.{name}"] = (sharp * drawn).astype(np.float32)
    for name in biased:
        rows = len(tensors[f"layers.0.{name}.weight"])
        tensors[f"layers.0.{name}.bias"] = normal(rng, rows, scale=0.5)
        part, _, own = name.rpartition(".")
        block[part][own].bias = mx.zeros(rows)
    del tensors["layers.0.input_layernorm.weight"]
    block.load_weights([(n[9:], mx.array(one)) for n, one in tensors.items()], strict=False)
    tensors["fc.weight"] = normal(rng, HIDDEN, 2 * HIDDEN)
    tensors["embed_tokens.weight"] = np.zeros((VOCAB_SIZE, HIDDEN), np.float32)
    if bias:
        tensors["fc.bias"] = normal(rng, HIDDEN, scale=0.3)
    embedding = embedding_of(model)

    def layer(tokens, features):
        a = np.concatenate([embedding[tokens], features], axis=1) @ tensors["fc.weight"].T
        a = mx.array(a + tensors.get("fc.bias", 0))[None]
        y = a + block.self_attn(a, "causal" if len(tokens) > 1 else None)
        return np.array(y + block.mlp(block.post_attention_layernorm(y)))[0]

    def logits_of(text, path):
        features, tokens = last_hidden(model, text), [*text[1:], *path]
        while True:
            output = layer(tokens[: len(features)], features)
            if len(features) == len(tokens):
                return lm_head(model) @ output[-1], ALL
            features = np.concatenate([features, output[-1:]])

    return tensors, logits_of, LAYER


# EAGLE-3, whose formula is PyTorch's ---------------------------------------------------------

AUX = "eagle_aux_hidden_state_layer_ids"
PLAIN = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}


def boundary(model, text, number):
    """The target's hidden states (rows, h) at the input of a layer, or after the last one."""
    hidden = model.model.model.embed_tokens(mx.array([text[:-1]]))
    for layer in model.layers[:number]:
        hidden = layer(hidden, "causal" if hidden.shape[1] > 1 else None, None)
    return np.array(hidden[0])


def eagle3(
    rng,
    model,
    *,
    values=PLAIN,
    ids=(2, 2, 1),
    layer=None,
    drafted=None,
    embed=False,
    o_bias=True,
    **flags,
):
    """EAGLE-3's head, which reads the boundaries ``ids``, by default the authors' three.

    ``values`` are those of its configuration, and ``layer`` of the layer's; ``drafted`` is the
    number of tokens that are drafted. Without ``o_bias`` attention has biases on q, k and v alone.
    """
    torch.manual_seed(int(rng.integers(2**31)))
    layer = SIZES | {"vocab_size": VOCAB_SIZE} | (layer or {})
    head = TorchEagle3(ids, HIDDEN, layer, drafted=drafted, embed=embed, **flags)
    if not o_bias:
        head.midlayer.self_attn.o_proj.bias = None
    tokens = np.arange(len(head.d2t)) + head.d2t.numpy()
    config, name = values | flags | {"draft_vocab_size": len(tokens)}, "midlayer"
    if "architectures" in values:
        config |= layer
    else:  # of speculators
        config |= {"transformer_layer_config": layer, "speculators_model_type": "eagle3"}
        name = "layers.0"
    embedding = torch.tensor(embedding_of(model))

    def logits_of(text, path):
        states = [torch.tensor(boundary(model, text, number)) for number in ids]
        return head.logits(states, embedding, [*text[1:], *path]).numpy(), tokens

    return {n: one.numpy() for n, one in head.tensors(name).items()}, logits_of, config


OUTPUTS = PLAIN | {"eagle_config": {AUX: [0, 2, 3]}}  # of layers, whose outputs are read
WIDE = {"head_dim": 16, "rope_theta": 1e6}
some_tokens = partial(eagle3, values=OUTPUTS, ids=[1, 3, 4], layer=WIDE, drafted=60)

NARROW, OF_32 = {"hidden_size": 16, "head_dim": 8}, PLAIN | {"target_hidden_size": HIDDEN}
narrow = partial(eagle3, values=OF_32, layer=NARROW, drafted=60, embed=True)

ROPE = {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
more = {"drafted": 60, "embed": True, "norm_before_residual": True}
speculators = partial(eagle3, values={AUX: None}, layer=ROPE, **more)

SCALED = {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "attention_bias": True}
more = {"norm_before_fc": True, "norm_before_residual": False}
altered = partial(eagle3, values={AUX: [0, 4]}, ids=[0, 4], layer=SCALED, **more)

of_qwen2 = partial(eagle3, layer={"attention_bias": True}, o_bias=False)

QWEN3 = {"model_type": "qwen3", "head_dim": 12}
more = {"drafted": 60, "fc_norm": True, "norm_output": True, "norm_before_residual": True}
of_qwen3 = partial(eagle3, values={AUX: [1, 2, 3]}, ids=[1, 2, 3], layer=QWEN3, **more)


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

    return {"prompt_embeddings": embeddings}, logits_of, {"num_exits": 1}


_QKV = [f"self_attn.{name}_proj" for name in "qkv"]
_EVERY = [*_QKV, "self_attn.o_proj", *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]
HEADS = {
    "eagle": ("grouped heads, tied", eagle),
    "eagle, no bias": ("one kv head, untied", partial(eagle, bias=False)),
    "eagle, Qwen2's biases": ("full heads, biases", partial(eagle, biased=_QKV)),
    "eagle, every bias": ("grouped heads, tied", partial(eagle, biased=_EVERY)),
    "eagle3": ("grouped heads, tied", eagle3),
    "eagle3, Qwen2's biases": ("full heads, biases", of_qwen2),
    "eagle3, some tokens": ("one kv head, untied", some_tokens),
    "eagle3, narrower than the target": ("full heads, biases", narrow),
    "eagle3, speculators': null ids, an embedding": ("llama3 rope", speculators),
    "eagle3, speculators': a norm before fc, ids given": ("grouped heads, tied", altered),
    "eagle3.1, speculators', Qwen3's layer": ("one kv head, untied", of_qwen3),
    "ppd": ("one kv head, untied", prompt_tokens),
    "medusa, own heads": ("grouped heads, tied", medusa),
    "medusa, the base's head": ("one kv head, untied", partial(medusa, own=False, layers=2)),
    "medusa, two layers": ("full heads, biases", partial(medusa, layers=2)),
    "hydra": ("one kv head, untied", hydra),
}
