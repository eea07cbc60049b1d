"""The draft heads as they are trained, in PyTorch; parameters are named as in published files.

A head reads a base's last hidden states H after the final norm, or those at other boundaries, and
the tokens after them: at position t it has the hidden state of token t, knows token t + 1, the
root, and the drafts t + 2, .. , and guesses token t + 2 + i at depth i. All start as the base
itself, with z = H, and EAGLE-3 as an early exit at its last boundary, since few updates bring them
further than from the published trainers' random weights.

Shapes: B sequences of T tokens, C positions, D depths, h the hidden size. ``forward`` takes states
(B, T, h), of EAGLE-3 (B, T, n * h), embeddings (B, T, h) and positions (B, C), and returns what the
LM head reads, (B, C, D, h). ``lm_heads`` are a head's own, one a depth; empty: the base's.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from specstream_mlx.convert.pytorch.attention import Scoring, gather_rows
from specstream_mlx.convert.pytorch.backbone import ATTENTION
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)


class _Residual(nn.Module):
    """``R x + silu(L x)``; R is the identity where widths do not differ."""

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        if width != hidden_size:
            self.res_connection = nn.Linear(width, hidden_size)
            nn.init.eye_(self.res_connection.weight)
            nn.init.zeros_(self.res_connection.bias)

    def forward(self, x: Tensor) -> Tensor:
        through = self.res_connection(x) if hasattr(self, "res_connection") else x
        return through + F.silu(self.linear(x))


class Medusa(nn.ModuleList):
    """Medusa's heads, a layer each and, if they have their own, an LM head, (n, h) at first."""

    def __init__(self, hidden_size: int, depth: int, lm_head: Tensor | None) -> None:
        super().__init__()
        for _ in range(depth):
            self.append(nn.ModuleList([_Residual(hidden_size, hidden_size)]))
            if lm_head is not None:
                head = nn.Linear(*reversed(lm_head.shape), bias=False)
                head.weight = nn.Parameter(lm_head.detach().float().clone())
                self[-1].append(head)

    @property
    def lm_heads(self) -> list[nn.Linear]:
        return [head[1] for head in self if len(head) > 1]

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        rows = gather_rows(hidden, positions)
        return torch.stack([head[0](rows) for head in self], dim=2)


class Hydra(nn.Module):
    """Hydra's heads, a layer each, which share the base's LM head."""

    lm_heads: tuple[nn.Linear, ...] = ()

    def __init__(self, hidden_size: int, depth: int) -> None:
        super().__init__()
        layers = [_Residual((i + 2) * hidden_size, hidden_size) for i in range(depth)]
        self.hydra_mlp = nn.ModuleList(nn.Sequential(layer) for layer in layers)

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        read, outputs = gather_rows(hidden, positions), []
        for number, head in enumerate(self.hydra_mlp):
            following = gather_rows(_ahead(embeddings, 1 + number), positions)
            read = torch.cat((read, following), dim=-1)
            outputs.append(head(read))
        return torch.stack(outputs, dim=2)


class _Recurrent(nn.Module):
    """EAGLE's recurrence: the layer's output at a depth is its feature at the next one."""

    first_alone = False  # whether depth 0 alone is trained

    def __init__(self, config: LlamaConfig, depth: int, boundaries: Sequence[int] = ()) -> None:
        super().__init__()
        config._attn_implementation = ATTENTION
        self.config, self.depth, self.boundaries = config, depth, tuple(boundaries)
        self.rotary = LlamaRotaryEmbedding(config)

    def features(self, hidden: Tensor) -> Tensor:
        return hidden

    def layer(self, embeddings: Tensor, features: Tensor, **how: Any) -> Tensor:
        raise NotImplementedError

    def read(self, output: Tensor) -> Tensor:
        """What the LM head reads."""
        return output

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        paths, features, outputs = _Paths(), self.features(hidden), []
        for level in range(1 if self.training and self.first_alone else self.depth):
            places = torch.arange(level, level + features.shape[1], device=features.device)
            features = self.layer(
                _ahead(embeddings, 1 + level),
                features,
                attention_mask=None,
                position_embeddings=self.rotary(features, places[None]),
                attend=paths.attend,
            )
            outputs.append(gather_rows(self.read(features), positions))
        return torch.stack(outputs, dim=2)


class Eagle(_Recurrent):
    """EAGLE's layer, with the base's LM head."""

    lm_heads: tuple[nn.Linear, ...] = ()
    first_alone = True

    def __init__(self, config: LlamaConfig, depth: int) -> None:
        super().__init__(config, depth)
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size)
        layer = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat((torch.zeros(size, size), torch.eye(size)), dim=1))
        for weight in (self.fc.bias, layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            nn.init.zeros_(weight)

    def layer(self, embeddings: Tensor, features: Tensor, **how: Any) -> Tensor:
        return self.layers[0](self.fc(torch.cat((embeddings, features), dim=-1)), **how)


class Eagle3(_Recurrent):
    """EAGLE-3's layer, with an LM head (n, h) and a norm (h,) that start as they are given.

    Each of ``depth`` depths is trained, after the layer's own features of the one before.
    """

    def __init__(
        self,
        config: LlamaConfig,
        depth: int,
        boundaries: Sequence[int],
        norm: Tensor,
        lm_head: Tensor,
    ) -> None:
        super().__init__(config, depth, boundaries)
        size, width = config.hidden_size, len(boundaries)
        self.fc = nn.Linear(width * size, size, bias=False)
        self.midlayer = _WideLayer(config)
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(*reversed(lm_head.shape), bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(size).repeat(1, width))
            self.fc.weight[:, : (width - 1) * size] = 0
            self.norm.weight.copy_(norm)
            self.lm_head.weight.copy_(lm_head)

    @property
    def lm_heads(self) -> list[nn.Linear]:
        return [self.lm_head] * self.depth

    def features(self, hidden: Tensor) -> Tensor:
        return self.fc(hidden)

    def layer(self, embeddings: Tensor, features: Tensor, **how: Any) -> Tensor:
        return self.midlayer(embeddings, features, **how)

    def read(self, output: Tensor) -> Tensor:
        return self.norm(output)


class _WideLayer(nn.Module):
    """A Llama layer whose attention reads embeddings and features side by side."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, epsilon = config.hidden_size, config.rms_norm_eps
        self.self_attn = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * size, rows, bias=False))
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, epsilon)
        self.hidden_norm = LlamaRMSNorm(size, epsilon)
        self.post_attention_layernorm = LlamaRMSNorm(size, epsilon)
        nn.init.zeros_(self.self_attn.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def forward(self, embeddings: Tensor, features: Tensor, **how: Any) -> Tensor:
        x = torch.cat((self.input_layernorm(embeddings), self.hidden_norm(features)), dim=-1)
        y = features + self.self_attn(x, **how)[0]
        return y + self.mlp(self.post_attention_layernorm(y))


class _Paths:
    """Attention of rows drafted after every position, which see the text before and their path."""

    def __init__(self) -> None:
        self._levels: list[tuple[Tensor, Tensor]] = []

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        self._levels.append((keys, values))
        length = keys.shape[2]
        every = torch.ones(length, length, dtype=torch.bool, device=keys.device)
        itself = torch.eye(length, dtype=torch.bool, device=keys.device)
        sees = torch.cat([every.tril(), *(itself for _ in self._levels[1:])], dim=1)
        all_keys, all_values = (torch.cat(rows, dim=2) for rows in zip(*self._levels, strict=True))
        return F.scaled_dot_product_attention(
            queries, all_keys, all_values, attn_mask=sees, scale=scoring.scale, enable_gqa=True
        ).transpose(1, 2)


def _ahead(rows: Tensor, count: int) -> Tensor:
    """Rows (B, T, h) moved so that each place has the one ``count`` after it, or else the last."""
    places = torch.arange(count, count + rows.shape[1], device=rows.device)
    return rows[:, places.clamp(max=rows.shape[1] - 1)]


def layer_config(base: Any) -> LlamaConfig:
    """The sizes of a Llama layer like one of the base's, by its configuration."""
    heads = base.num_attention_heads
    return LlamaConfig(
        hidden_size=base.hidden_size,
        intermediate_size=base.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(base, "num_key_value_heads", heads),
        head_dim=getattr(base, "head_dim", None) or base.hidden_size // heads,
        vocab_size=base.vocab_size,
        rms_norm_eps=getattr(base, "rms_norm_eps", 1e-6),
        max_position_embeddings=base.max_position_embeddings,
    )
