"""Speculative Streaming in PyTorch (arXiv 2402.11131): what the MLX runtime must reproduce.

A row at absolute position p holds token x_p. The main stream predicts x_{p+1}; stream j of
1..gamma starts from it at layer ``N - N_s`` (Eq. 4) and predicts x_{p+1+j}; its RoPE position is
p + j. Shapes below: B sequences of T tokens, C positions with streams, h hidden size, d head size.
"""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specstream_mlx.errors import UserError
from specstream_mlx.stream_config import StreamConfig

from .attention import (
    Scoring,
    causal_attention,
    flat_rows,
    gather_rows,
    likeliest_keys,
    rotate,
    stream_attention,
    stream_positions,
)
from .backbone import Backbone, Rope

EMBEDDING_STD = 0.02

_EPSILON = 1e-6  # of the RMS norm without weights; specstream_mlx/models/streams.py has the same


class LowRank(nn.Module):
    """The linear map ``up(down(x))`` of some rank: no bias, no activation."""

    def __init__(self, hidden_size: int, rank: int, *, start_at_zero: bool) -> None:
        super().__init__()
        self.down = nn.Linear(hidden_size, rank, bias=False)
        self.up = nn.Linear(rank, hidden_size, bias=False)
        nn.init.normal_(self.down.weight, std=hidden_size**-0.5)
        if start_at_zero:
            nn.init.zeros_(self.up.weight)
        else:
            nn.init.normal_(self.up.weight, std=rank**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., h) to (..., h)."""
        return self.up(self.down(x))


class ConditionedHead(nn.Module):
    """Head of streams that know the tokens before those that they predict.

    Stream j's features s become ``n(s) + U silu(D [n(s); n(E(u))] + b_j)``, with n an RMS norm
    without weights and E(u) the row of the base's embedding table for the token u before; the
    base's final norm and head follow. At the start U is zero; D has ``rank`` rows.
    """

    def __init__(self, hidden_size: int, rank: int, num_streams: int) -> None:
        super().__init__()
        self.down = nn.Linear(2 * hidden_size, rank, bias=False)
        self.up = nn.Linear(rank, hidden_size, bias=False)
        self.biases = nn.Parameter(torch.zeros(num_streams, rank))
        nn.init.normal_(self.down.weight, std=(2 * hidden_size) ** -0.5)
        nn.init.zeros_(self.up.weight)

    def read(self, embeddings: Tensor) -> Tensor:
        """The tokens' part of D's product: embeddings (..., h) to (..., r)."""
        half = self.down.weight[:, embeddings.shape[-1] :]
        return F.linear(normed(embeddings), half)

    def forward(self, features: Tensor, read: Tensor) -> Tensor:
        """Map the streams' features (..., gamma, h) with (..., gamma, r) of ``read``."""
        features = normed(features)
        inner = F.linear(features, self.down.weight[:, : features.shape[-1]]) + read + self.biases
        return features + self.up(F.silu(inner))


def normed(x: Tensor) -> Tensor:
    """The RMS norm of (..., h), without weights."""
    return F.rms_norm(x, x.shape[-1:], eps=_EPSILON)


class Streams(nn.Module):
    """The trainable parts of the streams, named as in ``StreamConfig.tensor_shapes()``.

    A draft vocabulary counts in training and at run time; the logits of
    ``SpeculativeStreamingModel`` are of all tokens.
    """

    def __init__(self, config: StreamConfig) -> None:
        super().__init__()
        self.num_streams = config.num_streams
        h = config.hidden_size
        if config.stream_init != "value_rotation":
            self.embeddings = nn.Parameter(EMBEDDING_STD * torch.randn(config.num_streams, h))
        if config.stream_init == "linear":
            self.init = LowRank(h, config.stream_init_rank, start_at_zero=False)
        if config.stream_adapter_rank:
            self.adapters = nn.ModuleDict(
                {
                    str(layer): LowRank(h, config.stream_adapter_rank, start_at_zero=True)
                    for layer in range(config.first_msa_layer, config.num_hidden_layers)
                }
            )
        if config.draft_vocabulary:
            ids = torch.arange(config.draft_vocabulary, dtype=torch.int32)
            self.register_buffer("vocabulary", ids)
        self.head: ConditionedHead | None = None
        if config.stream_head_rank:
            self.head = ConditionedHead(h, config.stream_head_rank, config.num_streams)

    def seed(self, main: Tensor) -> Tensor:
        """Start the streams (B, C, gamma, h) from main hidden states (B, C, h), as in Eq. 4."""
        if hasattr(self, "init"):
            main = self.init(main)
        streams = main.unsqueeze(2).expand(-1, -1, self.num_streams, -1)
        return streams + self.embeddings if hasattr(self, "embeddings") else streams


def _main_rows(rope: Rope, main: Tensor) -> Rope:
    """The part of rotary tables that is of the positions of the main stream (B, T, h)."""
    return rope and tuple(table[:, : main.shape[1]] for table in rope)


def tokens_after(tokens: Tensor, positions: Tensor, count: int) -> Tensor:
    """The ``count`` tokens (B, C, count) after positions (B, C).

    Past the end of ``tokens`` (B, T) the last one is repeated.
    """
    after = positions[..., None] + torch.arange(1, count + 1, device=positions.device)
    after = after.clamp(max=tokens.shape[1] - 1)
    return gather_rows(tokens, after.flatten(1)).view(after.shape)


@dataclass
class Trunk:
    """The hidden states before the final norm; those of single layers only if asked for."""

    seed: Tensor  # (B, T, h), the main stream's input to the first MSA layer
    main: Tensor  # (B, T, h) after the last layer
    streams: Tensor  # (B, C, gamma, h) after the last layer
    main_layers: list[Tensor]  # after every layer
    stream_layers: list[Tensor]  # at their start, and after every MSA layer


@dataclass
class StreamOutput:
    """The result of a forward pass of ``SpeculativeStreamingModel``."""

    main_logits: Tensor  # (B, T, V)
    stream_logits: Tensor  # (B, C, gamma, V), of a conditioned head on the true tokens before
    positions: Tensor  # (B, C) int64, where the streams ran
    valid: Tensor  # (B, C) bool, False where ``positions`` is padding
    trunk: Trunk


class SpeculativeStreamingModel(nn.Module):
    """A language model with speculative streams in its top ``num_msa_layers`` layers.

    Streams share the base's attention, norms and head: they are further rows that pass through the
    same layers (see ``Backbone``) with another attention and another MLP. Only the streams, the
    pruner and (in shared mode) LoRA weights are trainable; every other parameter of ``base``, on
    which PEFT may have put LoRA, is frozen here.
    """

    def __init__(self, base: nn.Module, config: StreamConfig) -> None:
        super().__init__()
        self.base = base
        self.config = config
        self.backbone = Backbone(self.causal_lm)
        facts = self.backbone.config
        for name in ("hidden_size", "num_hidden_layers"):
            found, expected = getattr(facts, name), getattr(config, name)
            if found != expected:
                raise UserError(f"{name} of the base is {found}, the streams expect {expected}")
        for name, parameter in base.named_parameters():
            is_lora = "lora_" in name
            if is_lora and ".layers." not in name:
                raise UserError(f"the base has LoRA in {name}, expected it in decoder layers")
            parameter.requires_grad_(is_lora and config.mode == "shared")
        self.streams = Streams(config)
        if config.pruner_rank:
            self.pruner = LowRank(config.hidden_size, config.pruner_rank, start_at_zero=True)

    @property
    def causal_lm(self) -> nn.Module:
        """The language model inside ``base``, without PEFT's wrapper."""
        return self.base.get_base_model() if hasattr(self.base, "peft_config") else self.base

    @property
    def draft_vocabulary(self) -> Tensor | None:
        """(n,) int64, the tokens that streams may draft; ``None``: all."""
        return self.streams.vocabulary.long() if self.config.draft_vocabulary else None

    def stream_tensors(self) -> dict[str, Tensor]:
        """The tensors of streams and pruner, named as in ``StreamConfig.tensor_shapes()``."""
        state = self.state_dict()
        return {name: state[name] for name in self.config.tensor_shapes()}

    def forward(
        self, tokens: Tensor, stream_from: Tensor, lengths: Tensor, *, keep_layers: bool = False
    ) -> StreamOutput:
        """Run the main stream, and the streams from ``stream_from - 1`` to the last token.

        The arguments are those of a ``Batch``; ``keep_layers`` also returns the hidden states
        after every layer.
        """
        positions, valid = stream_positions(stream_from, lengths)
        trunk = self.trunk(tokens, positions, valid, keep_layers=keep_layers)
        gamma = self.config.num_streams
        before = tokens_after(tokens, positions, gamma)
        stream_logits = self.stream_logits(trunk.streams, before)
        return StreamOutput(self.logits(trunk.main), stream_logits, positions, valid, trunk)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the final norm and the LM head: (..., h) to (..., V)."""
        return self.backbone.logits(self.backbone.norm(hidden))

    def stream_logits(self, streams: Tensor, before: Tensor) -> Tensor:
        """The logits (..., gamma, V) of the streams (..., gamma, h) after the last layer.

        Stream j predicts what follows the j-th of ``before`` (..., gamma); plain heads ignore it.
        """
        return self.logits(self.conditioned(streams, self.read(before)))

    def read(self, tokens: Tensor) -> Tensor | None:
        """Features (..., r) of tokens (...) for the conditioned head; ``None`` with plain heads."""
        head = self.streams.head
        return None if head is None else head.read(self.backbone.embedding(tokens))

    def conditioned(self, streams: Tensor, read: Tensor | None) -> Tensor:
        """The streams (..., gamma, h) as final norm and LM head see them, see ``read``."""
        head = self.streams.head
        return streams if read is None or head is None else head(streams, read)

    def early_exit_logits(self, seed: Tensor) -> Tensor:
        """The pruner's logits (..., V) for hidden states (..., h) before the first MSA layer."""
        return self.backbone.logits(self.early_exit_hidden(seed))

    def early_exit_hidden(self, seed: Tensor) -> Tensor:
        """The hidden states (..., h) that the LM head reads for ``early_exit_logits``."""
        seed = seed.detach()  # the pruner's loss trains the pruner alone
        return self.backbone.norm(seed + self.pruner(seed))

    def trunk(
        self, tokens: Tensor, positions: Tensor, valid: Tensor, *, keep_layers: bool = False
    ) -> Trunk:
        """Run all layers on ``tokens`` (B, T), with streams at ``positions``; no norm, no head."""
        config, backbone = self.config, self.backbone
        training = torch.is_grad_enabled()
        train_main = training and config.mode == "shared"
        main_layers: list[Tensor] = []
        with torch.set_grad_enabled(train_main):
            seed = backbone.embed(tokens)
            ropes = backbone.ropes(seed, tokens.shape[1] + config.num_streams)
            for index in range(config.first_msa_layer):
                seed = backbone.layer(index, seed, _main_rows(ropes[index], seed), causal_attention)
                if keep_layers:
                    main_layers.append(seed)
        rows = flat_rows(positions, tokens.shape[1])[valid.flatten()]
        main, streams = seed, self.streams.seed(gather_rows(seed, positions))
        stream_layers = [streams] if keep_layers else []

        def attend(queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
            """The main stream's attention in layer ``index``; it takes the streams along."""
            nonlocal streams
            attended, own_rows = causal_attention(queries, keys, values, scoring), None
            if config.mode == "shared" or config.stream_keys:
                own_rows = gather_rows(queries.transpose(1, 2), positions)
            with torch.set_grad_enabled(training):
                streams, own_rows = self.stream_rows(
                    index, ropes[index], keys, values, streams, own_rows, positions
                )
            if keep_layers:
                stream_layers.append(streams)
            if own_rows is None:
                return attended
            own_rows = own_rows.flatten(0, 1)[valid.flatten()].to(attended.dtype)  # Eq. 3
            return attended.flatten(0, 1).index_copy(0, rows, own_rows).view(attended.shape)

        for index in range(config.first_msa_layer, config.num_hidden_layers):
            with torch.set_grad_enabled(train_main):
                main = backbone.layer(index, main, _main_rows(ropes[index], main), attend)
            if keep_layers:
                main_layers.append(main)
        return Trunk(seed, main, streams, main_layers, stream_layers)

    def stream_rows(
        self,
        index: int,
        rope: Rope,
        keys: Tensor,
        values: Tensor,
        streams: Tensor,
        own_queries: Tensor | None,
        positions: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the streams (B, C, gamma, h) at ``positions`` (B, C) through one MSA layer.

        Keys and values (B, Hkv, T, d) are the main stream's, ``own_queries`` (B, C, Hq, d) those
        of the streams' main rows, where these select keys or see their streams. If they see them,
        the second result is their attention's output (B, C, Hq, d).
        """
        config, own = self.config, None
        by_row, shared = streams.shape[1:3], config.mode == "shared"
        steps = torch.arange(1, config.num_streams + 1, device=streams.device)
        if rope is not None:
            places = (positions[:, :, None] + steps).flatten(1)
            rope = tuple(table[0][places] for table in rope)

        def attend(
            queries: Tensor, stream_keys: Tensor, stream_values: Tensor, scoring: Scoring
        ) -> Tensor:
            nonlocal own
            queries, stream_keys, stream_values = (
                t.unflatten(2, by_row) for t in (queries, stream_keys, stream_values)
            )
            if config.stream_init == "value_rotation":
                angle = (config.value_rotation_epsilon * steps)[:, None]
                stream_values = rotate(stream_values, angle.cos(), angle.sin())
            selected = None
            if config.stream_keys:
                selected = likeliest_keys(own_queries, keys, positions, scoring, config.stream_keys)
            if shared and own_queries is not None:
                queries = torch.cat((own_queries.transpose(1, 2)[:, :, :, None], queries), dim=3)
            of_streams = stream_keys, stream_values, positions
            attended = stream_attention(queries, keys, values, *of_streams, scoring, selected)
            if shared:
                own, attended = attended[:, :, 0], attended[:, :, 1:]
            return attended.flatten(1, 2)

        with self.backbone.mlp_replaced(index, partial(self._stream_mlp, index)):
            rows = self.backbone.layer(index, streams.flatten(1, 2), rope, attend)
        return rows.unflatten(1, by_row), own

    def _stream_mlp(self, index: int, x: Tensor) -> Tensor:
        """The streams' counterpart of the main stream's MLP, (..., h) to (..., h) (Fig. 2a)."""
        kind = self.config.stream_mlp
        if kind == "base":
            return self.backbone.mlp(index, x)
        adapted = self.streams.adapters[str(index)](x)
        return adapted if kind == "adapter" else self.backbone.mlp(index, x) + adapted
