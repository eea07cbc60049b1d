"""Speculative Streaming in PyTorch (arXiv 2402.11131): what the MLX runtime must reproduce.

A row at absolute position p holds token x_p. The main stream predicts x_{p+1}; stream j of
1..gamma starts beside it at layer ``N - N_s`` (Eq. 4) and predicts x_{p+1+j}; its RoPE position is
p + j. Shapes below: B sequences of T tokens, C positions with streams, h hidden size, d head size.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from specstream_mlx.config import ConfigError, StreamConfig

from .attention import (
    Scoring,
    causal_attention,
    flat_rows,
    gather_rows,
    rotate,
    stream_attention,
    stream_positions,
)
from .backbone import Backbone, Rope
from .segments import join_segments, map_segments

EMBEDDING_STD = 0.02


class LowRank(nn.Module):
    """The linear map ``up(down(x))`` of a given rank: no bias, no activation."""

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


class Streams(nn.Module):
    """Stream embeddings, stream init and stream adapters, in the names of ``tensor_shapes()``."""

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

    def seed(self, main: Tensor) -> Tensor:
        """Stream init, Eq. 4: main hidden states (B, C, h) to streams (B, C, gamma, h)."""
        if hasattr(self, "init"):
            main = self.init(main)
        streams = main.unsqueeze(2).expand(-1, -1, self.num_streams, -1)
        return streams + self.embeddings if hasattr(self, "embeddings") else streams


@dataclass
class Trunk:
    """Hidden states before the final norm.

    Attributes:
        seed: (B, T, h), input of the first MSA layer.
        main: (B, T, h), output of the last layer, or ``None`` if it was not wanted.
        streams: (B, C, gamma, h), output of the last layer.
        main_layers: the output of every layer, if asked for.
        stream_layers: the streams as seeded and after every MSA layer, if asked for.
    """

    seed: Tensor
    main: Tensor | None
    streams: Tensor
    main_layers: list[Tensor] = field(default_factory=list)
    stream_layers: list[Tensor] = field(default_factory=list)


@dataclass
class StreamOutput:
    """What ``SpeculativeStreamingModel.forward`` returns.

    Attributes:
        main_logits: (B, T, V).
        stream_logits: (B, C, gamma, V).
        positions: (B, C), where the streams ran.
        valid: (B, C), False where ``positions`` is padding.
        trunk: the hidden states.
    """

    main_logits: Tensor
    stream_logits: Tensor
    positions: Tensor
    valid: Tensor
    trunk: Trunk


class SpeculativeStreamingModel(nn.Module):
    """A language model with speculative streams in its top ``num_msa_layers`` layers.

    Streams share the base's attention, norms and head: they are further rows that pass through the
    same layers (see ``Backbone``) with another attention and another MLP. Only the streams, the
    pruner and (in shared mode) LoRA weights are trainable; every other parameter of ``base`` is
    frozen here.

    Args:
        base: a causal language model of a tested architecture, or in shared mode one wrapped by
            ``peft`` with LoRA.
        config: the streams.

    Raises:
        ConfigError: ``base`` is of another architecture, its sizes are not those of ``config``, or
            it has LoRA weights in lossless mode.
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
                raise ConfigError(f"{name} of the base is {found}, of the streams {expected}")
        for name, parameter in base.named_parameters():
            is_lora = "lora_" in name
            if is_lora and config.mode == "lossless":
                raise ConfigError("lossless mode takes a base without LoRA: merge it first")
            if is_lora and ".layers." not in name:
                raise ConfigError(f"LoRA outside the decoder layers is not supported: {name}")
            parameter.requires_grad_(is_lora)
        self.streams = Streams(config)
        if config.pruner_rank:
            self.pruner = LowRank(config.hidden_size, config.pruner_rank, start_at_zero=True)

    @property
    def causal_lm(self) -> nn.Module:
        """The language model inside ``base``, without the wrapper of ``peft``."""
        return self.base.get_base_model() if hasattr(self.base, "peft_config") else self.base

    def stream_tensors(self) -> dict[str, Tensor]:
        """The stream and pruner tensors, named as in ``StreamConfig.tensor_shapes()``."""
        state = self.state_dict()
        return {name: state[name] for name in self.config.tensor_shapes()}

    def forward(
        self, tokens: Tensor, stream_from: Tensor, lengths: Tensor, *, keep_layers: bool = False
    ) -> StreamOutput:
        """Run main stream and streams, the latter from ``stream_from - 1`` to the last token.

        Args:
            tokens: (B, T) int64, padded on the right.
            stream_from: (B,) int64, index of the first completion token, at least 1.
            lengths: (B,) int64, tokens of each sequence.
            keep_layers: also return the hidden states of every layer.
        """
        positions, valid = stream_positions(stream_from, lengths)
        trunk = self.trunk(tokens, positions, valid, keep_layers=keep_layers)
        return StreamOutput(
            self.logits(trunk.main), self.logits(trunk.streams), positions, valid, trunk
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and LM head: (..., h) to (..., V)."""
        return self.backbone.logits(self.backbone.norm(hidden))

    def early_exit_logits(self, seed: Tensor) -> Tensor:
        """The pruner's logits (..., V) from the hidden states (..., h) at the first MSA layer."""
        return self.backbone.logits(self.early_exit_hidden(seed))

    def early_exit_hidden(self, seed: Tensor) -> Tensor:
        """What the LM head reads for ``early_exit_logits``: (..., h) to (..., h).

        The hidden states are detached: the pruner trains alone.
        """
        seed = seed.detach()
        if self.config.pruner_form == "literal":
            return self.pruner(seed)
        return self.backbone.norm(seed + self.pruner(seed))

    def trunk(
        self,
        tokens: Tensor,
        positions: Tensor,
        valid: Tensor,
        *,
        segments: int = 1,
        need_main: bool = True,
        keep_layers: bool = False,
    ) -> Trunk:
        """All layers, without final norm and head.

        Args:
            tokens: (B, T) int64, padded on the right.
            positions, valid: (B, C), of ``stream_positions``.
            segments: pieces in which the streams are computed (see ``segments``).
            need_main: False leaves out the main stream's last MLP, which no stream reads; ``main``
                is then ``None``.
            keep_layers: fill ``main_layers`` and ``stream_layers``.
        """
        config, backbone = self.config, self.backbone
        training = torch.is_grad_enabled()
        train_main = training and config.mode == "shared"
        length = tokens.shape[1]
        with torch.set_grad_enabled(train_main):
            main = backbone.embed(tokens)
            ropes = backbone.ropes(main, length + config.num_streams)
        rows = flat_rows(positions, length)[valid.flatten()]
        seed = streams = None
        main_layers, stream_layers = [], []

        def attend(queries: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
            """The main stream's attention in layer ``index``, which the streams pass meanwhile."""
            nonlocal streams
            attended = causal_attention(queries, keys, values, scoring)
            if streams is None:
                return attended
            shared = config.mode == "shared"
            own = gather_rows(queries.transpose(1, 2), positions) if shared else None
            with torch.set_grad_enabled(training):
                streams, own = join_segments(
                    map_segments(
                        partial(self._stream_rows, index, ropes[index], keys, values),
                        (streams, own, positions),
                        segments,
                    )
                )
            stream_layers.append(streams)
            if own is None:
                return attended
            own = own.flatten(0, 1)[valid.flatten()].to(attended.dtype)  # Eq. 3
            return attended.flatten(0, 1).index_copy(0, rows, own).view(attended.shape)

        for index in range(config.num_hidden_layers):
            if index == config.first_msa_layer:
                seed, streams = main, self.streams.seed(gather_rows(main, positions))
                stream_layers.append(streams)
            wanted = need_main or index < config.num_hidden_layers - 1
            rope = ropes[index] and tuple(table[:, :length] for table in ropes[index])
            with ExitStack() as context:
                if not wanted:
                    context.enter_context(backbone.mlp_replaced(index, nn.Identity()))
                context.enter_context(torch.set_grad_enabled(train_main))
                main = backbone.layer(index, main, rope, attend)
            if wanted:
                main_layers.append(main)
            if not keep_layers:
                main_layers.clear()
                stream_layers.clear()
        return Trunk(seed, main if need_main else None, streams, main_layers, stream_layers)

    def _stream_rows(
        self,
        index: int,
        rope: Rope,
        keys: Tensor,
        values: Tensor,
        streams: Tensor,
        own_queries: Tensor | None,
        positions: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """The streams (B, C, gamma, h) through one MSA layer, and what the main rows beside them
        attend to (B, C, Hq, d), if their queries (B, C, Hq, d) are given."""
        config, own = self.config, None
        by_row = streams.shape[1:3]
        steps = torch.arange(1, config.num_streams + 1, device=streams.device)
        if rope is not None:
            beside = (positions[:, :, None] + steps).flatten(1)
            rope = tuple(table[0][beside] for table in rope)

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
            if own_queries is not None:
                queries = torch.cat((own_queries.transpose(1, 2)[:, :, :, None], queries), dim=3)
            attended = stream_attention(
                queries, keys, values, stream_keys, stream_values, positions, scoring
            )
            if own_queries is not None:
                own, attended = attended[:, :, 0], attended[:, :, 1:]
            return attended.flatten(1, 2)

        with self.backbone.mlp_replaced(index, partial(self._stream_mlp, index)):
            rows = self.backbone.layer(index, streams.flatten(1, 2), rope, attend)
        return rows.unflatten(1, by_row), own

    def _stream_mlp(self, index: int, x: Tensor) -> Tensor:
        """What a stream passes through where the main stream has its MLP (H.2, Fig. 2a)."""
        kind = self.config.stream_mlp
        if kind == "base":
            return self.backbone.mlp(index, x)
        adapted = self.streams.adapters[str(index)](x)
        return adapted if kind == "adapter" else self.backbone.mlp(index, x) + adapted
