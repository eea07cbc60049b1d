"""The trained parts of speculative streams: embeddings, initialisation, stream adapters, pruner."""

import mlx.core as mx
import mlx.nn as nn

from ..config import StreamConfig


class LowRank(nn.Module):
    """A rank-r map without bias: ``up(down(x))``."""

    def __init__(self, dims: int, rank: int):
        super().__init__()
        self.down = nn.Linear(dims, rank, bias=False)
        self.up = nn.Linear(rank, dims, bias=False)
        self.up.weight = mx.zeros_like(self.up.weight)

    def __call__(self, x: mx.array) -> mx.array:
        return self.up(self.down(x))


class Streams(nn.Module):
    """Speculative streams of one adapter (Speculative Streaming, section 3.1).

    Parameter names are those of ``StreamConfig.tensor_shapes``: ``streams.*`` and ``pruner.*``.
    """

    def __init__(self, config: StreamConfig):
        super().__init__()
        self._config = config
        self.streams = {}
        if config.stream_init != "value_rotation":
            self.streams["embeddings"] = mx.zeros((config.num_streams, config.hidden_size))
        if config.stream_init == "linear":
            self.streams["init"] = LowRank(config.hidden_size, config.stream_init_rank)
        if config.stream_adapter_rank:
            # One entry per layer, empty below the MSA layers: mlx rebuilds number names as lists.
            self.streams["adapters"] = [
                LowRank(config.hidden_size, config.stream_adapter_rank)
                if layer >= config.first_msa_layer
                else {}
                for layer in range(config.num_hidden_layers)
            ]
        if config.pruner_rank:
            self.pruner = LowRank(config.hidden_size, config.pruner_rank)

    @property
    def config(self) -> StreamConfig:
        """What this adapter's streams are."""
        return self._config

    def seed(self, hidden: mx.array) -> mx.array:
        """Initial streams ``f_eta(M) + P_j`` (Eq. 4).

        Args:
            hidden: (m, h) main-stream rows at the input of the first MSA layer.

        Returns:
            (m, gamma, h)
        """
        if "init" in self.streams:
            hidden = self.streams["init"](hidden)
        hidden = hidden[:, None]
        if "embeddings" in self.streams:
            return hidden + self.streams["embeddings"].astype(hidden.dtype)
        return mx.broadcast_to(
            hidden, (hidden.shape[0], self._config.num_streams, hidden.shape[-1])
        )

    def stream_adapter(self, layer: int, x: mx.array) -> mx.array:
        """The streams' own path where the main stream has its MLP; see ``msa.SplitMLP``.

        Args:
            layer: absolute index of the MSA layer.
            x: (1, rows, h) normalised input.
        """
        return self.streams["adapters"][layer](x)
