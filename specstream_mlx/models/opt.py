"""OPT in the form of mlx-lm's models; mlx-lm itself has none.

Module names are Hugging Face's but for the two linear layers of a block, which sit in an ``mlp``
as in mlx-lm's other models. No rotary embedding: positions are learned and added to the tokens'.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs, create_attention_mask, scaled_dot_product_attention

_OFFSET = 2  # unused rows at the beginning of the table of positions: position 0 is its third


@dataclass
class ModelArgs(BaseModelArgs):
    model_type: str = "opt"
    vocab_size: int = 50272
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    ffn_dim: int = 3072
    max_position_embeddings: int = 2048
    do_layer_norm_before: bool = True
    tie_word_embeddings: bool = True
    _remove_final_layer_norm: bool = False


class LearnedPositions(nn.Module):
    """A table of one vector (dims,) for each of ``count`` positions."""

    def __init__(self, count: int, dims: int):
        super().__init__()
        self.weight = mx.zeros((count + _OFFSET, dims))

    def __call__(self, offset: mx.array | int, rows: int) -> mx.array:
        """(rows, dims) vectors, or (sequences, rows, dims)."""
        one_per_row = isinstance(offset, mx.array) and offset.ndim > 0
        positions = offset if one_per_row else offset + mx.arange(rows)
        last = self.weight.shape[0] - 1
        return self.weight[mx.minimum(positions + _OFFSET, last)]


class Attention(nn.Module):
    """Attention with biases and as many key and value heads as query heads."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        dims, self.n_heads = args.hidden_size, args.num_attention_heads
        self.scale = (dims // self.n_heads) ** -0.5
        self.q_proj = nn.Linear(dims, dims)
        self.k_proj = nn.Linear(dims, dims)
        self.v_proj = nn.Linear(dims, dims)
        self.out_proj = nn.Linear(dims, dims)
        self.rope = nn.Identity()  # where other models' queries and keys pass

    def __call__(self, x: mx.array, mask: Any = None, cache: Any | None = None) -> mx.array:
        batch, rows, _ = x.shape
        queries, keys, values = (
            projection(x).reshape(batch, rows, self.n_heads, -1).transpose(0, 2, 1, 3)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = self.rope(queries), self.rope(keys)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        out = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=self.scale, mask=mask
        )
        return self.out_proj(out.transpose(0, 2, 1, 3).reshape(batch, rows, -1))


class MLP(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.fc1 = nn.Linear(args.hidden_size, args.ffn_dim)
        self.fc2 = nn.Linear(args.ffn_dim, args.hidden_size)

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(nn.relu(self.fc1(x)))


class OPTDecoderLayer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.norm_before = args.do_layer_norm_before
        self.self_attn = Attention(args)
        self.mlp = MLP(args)
        self.self_attn_layer_norm = nn.LayerNorm(args.hidden_size)
        self.final_layer_norm = nn.LayerNorm(args.hidden_size)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any | None = None) -> mx.array:
        if self.norm_before:
            x = x + self.self_attn(self.self_attn_layer_norm(x), mask, cache)
            return x + self.mlp(self.final_layer_norm(x))
        x = self.self_attn_layer_norm(x + self.self_attn(x, mask, cache))
        return self.final_layer_norm(x + self.mlp(x))


class OPTDecoder(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.embed_positions = LearnedPositions(args.max_position_embeddings, args.hidden_size)
        self.layers = [OPTDecoderLayer(args) for _ in range(args.num_hidden_layers)]
        normed = args.do_layer_norm_before and not args._remove_final_layer_norm
        self.final_layer_norm = nn.LayerNorm(args.hidden_size) if normed else nn.Identity()

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        cache = cache or [None] * len(self.layers)
        offset = cache[0].offset if cache[0] is not None else 0
        h = self.embed_tokens(inputs) + self.embed_positions(offset, inputs.shape[1])
        mask = create_attention_mask(h, cache[0])
        for layer, layer_cache in zip(self.layers, cache, strict=False):
            h = layer(h, mask, layer_cache)
        return self.final_layer_norm(h)


class OPTModel(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.decoder = OPTDecoder(args)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        return self.decoder(inputs, cache)


class Model(nn.Module):
    """The language model; logits (batch, rows, vocab)."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args, self.model_type = args, args.model_type
        self.model = OPTModel(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        h = self.model(inputs, cache)
        if self.args.tie_word_embeddings:
            return self.model.decoder.embed_tokens.as_linear(h)
        return self.lm_head(h)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Rename Hugging Face's tensors to this model's names."""
        renamed = {}
        for name, value in weights.items():
            name = name if name.startswith(("model.", "lm_head.")) else f"model.{name}"
            for part in ("fc1", "fc2"):
                if ".mlp." not in name:
                    name = name.replace(f".{part}.", f".mlp.{part}.")
            renamed[name] = value
        if self.args.tie_word_embeddings:
            renamed.pop("lm_head.weight", None)
        return renamed

    @property
    def layers(self) -> list[OPTDecoderLayer]:
        return self.model.decoder.layers
