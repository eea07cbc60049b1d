"""An mlx-lm model run in stages: embedding, layers i to j, head; no other module does that.

A step stops below the MSA layers, to prune the tree and to add the streams. So ``BorrowedModel``
copies the few modules that hold others (the model, the owner of its layers, each layer and its
attention) and shares those that hold weights. In its copy one stand-in has the place of all layers,
which run one by one, with ropes that take a position for every row. The model is never changed, so
any number of generations may run on it at a time.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from ..errors import UserError
from ..hardware.cpu import Rotations, shared_rotations
from ..models.architectures import architecture_of
from ..models.streams import Streams, rows_of
from .key_selection import QueryCapturingRope

FIRST_HANDED_OVER, HANDED_OVER_EVERY = 1, 6
"""Layers whose output the device computes while the host builds the next ones."""

FINAL = -1  # the boundary after the final norm


class BorrowedModel:
    """A model that can be run in stages: embedding, layers i to j, head, early exit.

    Hidden states and logits are (sequences, rows, ..). ``caches`` are, by layer, KV caches or their
    stand-ins in a pass, ``UncommittedRows``, which also make the masks.

    ``traced`` passes are compiled or differentiated: none of one is computed before it is complete.
    Layers of ``checkpointed`` ones are computed again by themselves, so they share no angles.
    ``boundaries`` are hidden states to keep for a draft head, see ``take_features``.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None = None,
        traced: bool = False,
        checkpointed: bool = False,
        boundaries: Sequence[int] = (),
    ):
        self._streams: Any = streams
        self.boundaries, self._features = boundaries, dict[int, mx.array]()
        self._architecture = architecture_of(getattr(model, "model_type", None))
        self._handed_over = range(
            FIRST_HANDED_OVER, 0 if traced else len(model.layers), HANDED_OVER_EVERY
        )
        self._rotations: set[Rotations] = set()  # each pass begins with fresh ones
        self._layers = self._with_positions(model.layers, checkpointed)
        self._root, self._owner = _copies(model)
        self._all_layers = AllLayers(model.layers[0])
        self._owner["layers"] = [self._all_layers]
        self._holder, self._head_name = self._owner, "embed_tokens"  # where heads are tied
        if "lm_head" in self._root:
            self._holder, self._head_name = self._root, "lm_head"
        if boundaries or (streams is not None and streams.head is not None):
            self._embedding = _module_next_to_layers(self._owner, "embed_tokens")
        if boundaries:
            self._norm = _module_next_to_layers(self._owner, self._architecture.norm)
        self._stream_mlps: dict[int, StreamMLP] = {}
        self._capturing: dict[int, QueryCapturingRope] = {}
        self._drafted: nn.Module | None = None
        self._lm_head: Any = self._holder.get(self._head_name)
        if streams is None:
            return
        for number in range(streams.config.first_msa_layer, len(self._layers)):
            self._prepare_for_streams(number, streams)
        if traced:
            mx.eval(self._stream_head.parameters())  # a compiled step captures values, not graphs

    def _with_positions(self, layers: Sequence[nn.Module], checkpointed: bool) -> list[nn.Module]:
        copies = [copy(layer) for layer in layers]
        if self._architecture.positions == "rope":
            names = [_attention_with_rope(number, layer) for number, layer in enumerate(layers)]
            ropes = [layer[name]["rope"] for layer, name in zip(layers, names, strict=True)]
            tables = [None] * len(ropes) if checkpointed else shared_rotations(ropes, rope_at)
            self._rotations = {table for table in tables if table is not None}
            for layer, name, rope, table in zip(copies, names, ropes, tables, strict=True):
                layer[name] = copy(layer[name])
                layer[name]["rope"] = PositionedRope(rope, table)
        return copies

    def _prepare_for_streams(self, number: int, streams: Streams) -> None:
        """Give the copy of an MSA layer the streams' adapter, and a rope that hands on queries."""
        layer, config = self._layers[number], streams.config
        if config.stream_mlp != "base":
            if "mlp" not in layer:
                raise UserError(
                    f"layer {number} has no mlp, which a stream_mlp of {config.stream_mlp!r} takes "
                    "the place of"
                )
            layer["mlp"] = self._stream_mlps[number] = StreamMLP(layer["mlp"], streams, number)
        if config.stream_keys:
            name = _attention_with_rope(number, layer)
            attention = layer[name] = copy(layer[name])
            attention["rope"] = self._capturing[number] = QueryCapturingRope(attention)

    # The stages ---------------------------------------------------------------------------------

    def lower(self, tokens: mx.array, caches: Sequence[Any], last: int) -> mx.array:
        """Run embedding and the first ``last`` layers over tokens (sequences, rows)."""
        outputs = []

        def run(hidden: mx.array) -> mx.array:
            outputs.append(self.layers(hidden, caches, last=last))
            return outputs[0]

        self._run(tokens, caches, run)  # norm and head are never computed
        return outputs[0]

    def layers(
        self,
        hidden: mx.array,
        caches: Sequence[Any],
        first: int = 0,
        last: int | None = None,
        main_rows: int | None = None,
        early: bool = True,
    ) -> mx.array:
        """Run layers ``first`` to ``last`` - 1; ``main_rows`` come before the streams."""
        self.forget_angles()
        for number in range(first, len(self._layers) if last is None else last):
            if number in self.boundaries:
                self._features[number] = hidden
            hidden = self.layer(number, hidden, caches[number], main_rows)
            if early and number in self._handed_over:
                mx.async_eval(hidden)  # the device begins while the next layers are built
        return hidden

    def forget_angles(self) -> None:
        """Drop the rotations of the last pass; a trace that kept its own would keep its graph."""
        for rotations in self._rotations:
            rotations.begin()

    def layer(
        self, number: int, hidden: mx.array, cache: Any, main_rows: int | None = None
    ) -> mx.array:
        if number in self._capturing:
            self._capturing[number].ask = getattr(cache, "ask", None)
        if number in self._stream_mlps:
            rows = hidden.shape[1] if main_rows is None else main_rows
            self._stream_mlps[number].main_rows = rows
        arrays = self._architecture.array_masks
        mask = create_attention_mask(hidden, cache, return_array=arrays)
        return self._layers[number](hidden, mask, cache=cache)

    def logits(self, tokens: mx.array, caches: Sequence[Any], early: bool = False) -> mx.array:
        """Run all stages without streams."""

        def run(hidden: mx.array) -> mx.array:
            hidden = self.layers(hidden, caches, early=early)
            if not self.boundaries:
                return hidden
            normed = self._norm(hidden)
            self._features |= {len(self._layers): hidden, FINAL: normed}
            return normed

        return self._run(tokens, caches, run, NO_NORM if self.boundaries else None)

    def take_features(self) -> tuple[mx.array, ...]:
        """Return, and release, the hidden states that the last pass without streams kept.

        For each of ``boundaries``: the input of that layer; for the number of layers, the output of
        the last one; for ``FINAL``, the head's input.
        """
        features = tuple(self._features[boundary] for boundary in self.boundaries)
        self._features.clear()
        return features

    def head(
        self, hidden: mx.array, norm: nn.Module | None = None, head: nn.Module | None = None
    ) -> mx.array:
        """Apply final norm and LM head, or others in their place."""
        tokens = mx.zeros(hidden.shape[:2], mx.int32)  # whose embedding is never computed
        return self._run(tokens, [None] * len(self._layers), lambda _: hidden, norm, head)

    def _run(
        self,
        tokens: mx.array,
        caches: Sequence[Any],
        layers: Callable[[mx.array], mx.array],
        norm: nn.Module | None = None,
        head: nn.Module | None = None,
    ) -> mx.array:
        self._all_layers.run = layers
        if self.boundaries:
            self._owner[self._architecture.norm] = self._norm if norm is None else norm
        if self._lm_head is not None:
            self._holder[self._head_name] = self._lm_head if head is None else head
        return self._root(tokens, cache=caches)

    # Embedding and heads ------------------------------------------------------------------------

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the stored rows (.., h) of the embedding for tokens (..)."""
        return self._embedding(tokens)

    @property
    def _stream_head(self) -> nn.Module:
        """The head's rows of the tokens that the streams may draft, copied when first needed."""
        if self._drafted is None:
            self._drafted = self._streams.head_rows(self._lm_head)
        return self._drafted

    @property
    def drafted_rows(self) -> nn.Module | None:
        """The head's rows of the tokens that may be drafted, a copy; ``None``: all may, or none."""
        streams = self._streams
        return None if streams is None or streams.vocabulary is None else self._stream_head

    @drafted_rows.setter
    def drafted_rows(self, rows: nn.Module | None) -> None:
        self._drafted = rows

    def release_vocabulary(self) -> None:
        """Release the head's rows until the streams guess again."""
        self._drafted, self._holder[self._head_name] = None, self._lm_head

    def stream_head(self, hidden: mx.array, head: nn.Module | None = None) -> mx.array:
        """Compute logits of the tokens that may be drafted, or of ``stream_head_rows`` alone."""
        return self.head(hidden, head=self._stream_head if head is None else head)

    def stream_head_rows(self, places: mx.array) -> nn.Module:
        return rows_of(self._stream_head, places)

    def early_exit(self, hidden: mx.array) -> mx.array:
        """Compute the early-exit pruner's logits, section 3.3."""
        return self.head(self.early_exit_features(hidden))

    def early_exit_features(self, hidden: mx.array) -> mx.array:
        """Map main rows to the input of the early exit's norm and head."""
        return hidden + self._streams.pruner(hidden)


NO_NORM = nn.Identity()


def _copies(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Copy a model down to the module that holds its ``layers``; all other modules are shared."""
    layers = model.layers  # which may be a copy of the list
    for name, module in model.named_modules():
        held = module.get("layers")
        if isinstance(held, list) and list(map(id, held)) == list(map(id, layers)):
            root = owner = copy(model)
            for part in name.split(".") if name else []:
                owner[part] = copy(owner[part])
                owner = owner[part]
            return root, owner
    raise UserError("the model does not hold its layers in one list")


def _module_next_to_layers(owner: nn.Module, name: str) -> nn.Module:
    if name not in owner:
        raise UserError(
            f"the model has no {name} next to its layers, which a draft head or a stream_head of "
            "'conditioned' reads"
        )
    return owner[name]


def _attention_with_rope(number: int, layer: nn.Module) -> str:
    name = next((name for name, m in layer.children().items() if "rope" in m), None)
    if name is None:
        raise UserError(f"layer {number} has no attention with rope")
    if isinstance(layer[name]["rope"], DynamicNTKScalingRoPE):
        raise UserError(
            f"layer {number} scales its rope by the length of the text, "
            "expected a rope that depends on positions alone"
        )
    return name


# Stand-ins -----------------------------------------------------------------------------------


class AllLayers:
    """Stands for all layers of a model: applies ``run``, and has a layer's attributes."""

    run: Callable[[mx.array], mx.array]

    def __init__(self, layer: nn.Module):
        self._layer: Any = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, hidden: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        run = self.run
        del self.run  # and what it refers to
        return run(hidden)


class PositionedRope:
    """A layer's rotary embedding that also takes one absolute position per row."""

    def __init__(self, rope: nn.Module, rotations: Rotations | None = None):
        self._rope, self._rotations = rope, rotations

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        one_sequence = isinstance(offset, int) or offset.ndim == 1
        whole = x.dtype == mx.float32 and x.shape[-1] == getattr(self._rope, "dims", None)
        if self._rotations and one_sequence and whole:
            return self._rotations.rotate(x, offset)
        return rope_at(self._rope, x, offset)


def rope_at(rope: nn.Module, x: mx.array, offset: mx.array | int) -> mx.array:
    """Rotate (sequences, heads, rows, d) at a first position, (rows,) or (sequences, rows)."""
    if isinstance(offset, int):
        return rope(x, offset=offset)
    # mlx takes one offset per batch row: make every row a batch of its own.
    if offset.ndim == 2:
        sequences, heads, rows, size = x.shape
        single = x.swapaxes(1, 2).reshape(sequences * rows, heads, 1, size)
        rotated = rope(single, offset=offset.reshape(-1))
        return rotated.reshape(sequences, rows, heads, size).swapaxes(1, 2)
    return rope(x.swapaxes(0, 2), offset=offset).swapaxes(0, 2)


class StreamMLP:
    """An MSA layer's MLP; rows after ``main_rows`` pass through the streams' adapter, or both."""

    def __init__(self, mlp: nn.Module, streams: Streams, number: int):
        self._mlp, self._adapter = mlp, streams.streams["adapters"][number]
        self._both = streams.config.stream_mlp == "base+adapter"
        self.main_rows = 0

    def __call__(self, x: mx.array) -> mx.array:
        count = self.main_rows
        if x.shape[1] == count:
            return self._mlp(x)
        streams = self._adapter(x[:, count:])
        if self._both:  # one product over all rows: its weights are read once
            through = self._mlp(x)
            main, streams = through[:, :count], through[:, count:] + streams
        elif count:
            main = self._mlp(x[:, :count])
        return mx.concatenate([main, streams], axis=1) if count else streams
