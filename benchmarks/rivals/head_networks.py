"""The draft heads as they are trained, in PyTorch; parameters are named as in published files.

A head reads a base's last hidden states H behind the final norm, or those at other boundaries, and
the tokens behind them: at position t it stands behind the hidden state of token t, knows token
t + 1, the root, and the drafts t + 2, .. , and guesses token t + 2 + i at depth i. All start as the
base itself, with z = H, and EAGLE-3 as an early exit at its last boundary, since few updates bring
them further than from the published trainers' random weights.

Shapes: B sequences of T tokens, C positions, D depths, h the hidden size. ``forward`` takes states
(B, T, h), of EAGLE-3 (B, T, n * h), embeddings (B, T, h) and positions (B, C), and returns what the
LM head reads, (B, C, D, h).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from specstream_mlx.convert.pytorch.attention import Scoring, causal_attention, gather_rows
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
    """Medusa's heads, each with layers and, if it has its own, an LM head, (n, h) at first."""

    def __init__(self, hidden_size: int, depth: int, layers: int, lm_head: Tensor | None) -> None:
        heads = []
        for _ in range(depth):
            parts: list[nn.Module] = [_Residual(hidden_size, hidden_size) for _ in range(layers)]
            if lm_head is not None:
                parts.append(nn.Linear(*reversed(lm_head.shape), bias=False))
                parts[-1].weight = nn.Parameter(lm_head.detach().float().clone())
            heads.append(nn.ModuleList(parts))
        super().__init__(heads)
        self.layers = layers

    @property
    def lm_heads(self) -> list[nn.Linear]:
        """Their own LM heads; empty: they share the base's."""
        return [head[-1] for head in self if len(head) > self.layers]

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        outputs = []
        for head in self:
            z = gather_rows(hidden, positions)
            for layer in head[: self.layers]:
                z = layer(z)
            outputs.append(z)
        return torch.stack(outputs, dim=2)


class Hydra(nn.Module):
    """Plain Hydra's heads, which share the base's LM head."""

    lm_heads: tuple[nn.Linear, ...] = ()

    def __init__(self, hidden_size: int, depth: int, layers: int) -> None:
        super().__init__()
        self.hydra_mlp = nn.ModuleList()
        for number in range(depth):
            widths = [(number + 2) * hidden_size] + [hidden_size] * (layers - 1)
            self.hydra_mlp.append(nn.Sequential(*(_Residual(w, hidden_size) for w in widths)))

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        read = gather_rows(hidden, positions)
        outputs = []
        for number, head in enumerate(self.hydra_mlp):
            following = gather_rows(_ahead(embeddings, 1 + number), positions)
            read = torch.cat((read, following), dim=-1)
            outputs.append(head(read))
        return torch.stack(outputs, dim=2)


class Eagle(nn.Module):
    """EAGLE's layer, with the base's LM head; ``depth`` counts where it is not trained."""

    lm_heads: tuple[nn.Linear, ...] = ()

    def __init__(self, config: LlamaConfig, depth: int) -> None:
        super().__init__()
        config._attn_implementation = ATTENTION
        size, self.config, self.depth = config.hidden_size, config, depth
        self.fc = nn.Linear(2 * size, size)
        layer = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary = LlamaRotaryEmbedding(config)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat((torch.zeros(size, size), torch.eye(size)), dim=1))
        for weight in (self.fc.bias, layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            nn.init.zeros_(weight)

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        """Behind depth 0, which alone is trained, features are its own."""
        paths, features, outputs = _Paths(), hidden, []
        for level in range(1 if self.training else self.depth):
            x = self.fc(torch.cat((_ahead(embeddings, 1 + level), features), dim=-1))
            rope = self.rotary(x, _places(level, x))
            features = self.layers[0](
                x, attention_mask=None, position_embeddings=rope, attend=paths.attend
            )
            outputs.append(gather_rows(features, positions))
        return torch.stack(outputs, dim=2)


class Eagle3(nn.Module):
    """EAGLE-3's layer, with an LM head (n, h) and a norm (h,) that start as they are given.

    Each of ``depth`` depths is trained, behind the layer's own features of the one before.
    """

    def __init__(
        self,
        config: LlamaConfig,
        depth: int,
        boundaries: Sequence[int],
        norm: Tensor,
        lm_head: Tensor,
    ) -> None:
        super().__init__()
        config._attn_implementation = ATTENTION
        size, width, self.config = config.hidden_size, len(boundaries), config
        self.depth, self.boundaries = depth, tuple(boundaries)
        self.fc = nn.Linear(width * size, size, bias=False)
        self.midlayer = _WideLayer(config)
        self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
        self.lm_head = nn.Linear(*reversed(lm_head.shape), bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(size).repeat(1, width))
            self.fc.weight[:, : (width - 1) * size] = 0
            self.norm.weight.copy_(norm)
            self.lm_head.weight.copy_(lm_head)

    @property
    def lm_heads(self) -> list[nn.Linear]:
        """The LM head of each depth: the same one."""
        return [self.lm_head] * self.depth

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor) -> Tensor:
        paths, features, outputs = _Paths(), self.fc(hidden), []
        for level in range(self.depth):
            rope = self.rotary(features, _places(level, features))
            features = self.midlayer(_ahead(embeddings, 1 + level), features, rope, paths)
            outputs.append(gather_rows(self.norm(features), positions))
        return torch.stack(outputs, dim=2)


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

    def forward(self, embeddings: Tensor, features: Tensor, rope: Any, paths: "_Paths") -> Tensor:
        x = torch.cat((self.input_layernorm(embeddings), self.hidden_norm(features)), dim=-1)
        attended, _ = self.self_attn(
            x, attention_mask=None, position_embeddings=rope, attend=paths.attend
        )
        y = features + attended
        return y + self.mlp(self.post_attention_layernorm(y))


class _Paths:
    """Attention of rows drafted behind every position of a text, level by level.

    Level 0 is the text's own rows. A row of a later level sees those of level 0 up to its position,
    and the rows of its own path.
    """

    def __init__(self) -> None:
        self._levels: list[tuple[Tensor, Tensor]] = []

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        groups = queries.shape[1] // keys.shape[1]
        self._levels.append((keys, values))
        if len(self._levels) == 1:
            return causal_attention(queries, keys, values, scoring)
        pairs = [[t.repeat_interleave(groups, 1) for t in level] for level in self._levels]
        (text_keys, text_values), *own = pairs
        rows = queries * scoring.scale
        length = rows.shape[2]
        later = torch.ones(length, length, dtype=torch.bool, device=rows.device).triu(1)
        scores = (rows @ text_keys.transpose(2, 3)).masked_fill(later, float("-inf"))
        beside = [(rows * key).sum(-1, keepdim=True) for key, _ in own]
        weights = torch.cat((scores, *beside), dim=-1).softmax(-1).to(values.dtype)
        of_text, *of_own = weights.split((length, *(1 for _ in own)), dim=-1)
        output = of_text @ text_values
        for weight, (_, value) in zip(of_own, own, strict=True):
            output = output + weight * value
        return output.transpose(1, 2)


def _places(level: int, rows: Tensor) -> Tensor:
    return torch.arange(level, level + rows.shape[1], device=rows.device)[None]


def _ahead(rows: Tensor, count: int) -> Tensor:
    """Rows (B, T, h) moved so that each place has the one ``count`` behind it, or else the last."""
    places = torch.arange(count, count + rows.shape[1], device=rows.device)
    return rows[:, places.clamp(max=rows.shape[1] - 1)]


def layer_config(base: Any, intermediate_size: int | None) -> LlamaConfig:
    """The sizes of a Llama layer like one of the base's, by its configuration."""
    heads = base.num_attention_heads
    return LlamaConfig(
        hidden_size=base.hidden_size,
        intermediate_size=intermediate_size or base.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(base, "num_key_value_heads", heads),
        head_dim=getattr(base, "head_dim", None) or base.hidden_size // heads,
        vocab_size=base.vocab_size,
        rms_norm_eps=getattr(base, "rms_norm_eps", 1e-6),
        max_position_embeddings=base.max_position_embeddings,
    )
