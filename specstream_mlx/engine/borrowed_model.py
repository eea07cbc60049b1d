"""An mlx-lm model run in pieces; the only code that touches a model.

mlx-lm's models run from tokens to logits in one go. A step has to stop below the MSA layers, to
prune the tree and to add the streams, and then goes on layer by layer. So ``BorrowedModel`` copies
the few modules that hold others (the model, the owner of its layers, each layer and its attention)
and shares all modules that hold weights. Its copies have lists of layers of their own and ropes
that take a position for every row. The model itself is never changed, so any number of generations
may run on it at a time; a LoRA that is mounted later is not seen.
"""

from collections.abc import Callable, Container, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import DynamicNTKScalingRoPE

from ..config import UserError
from ..hardware.cpu.rotations import Rotations, shared_rotations
from ..models.architectures import architecture_of
from ..models.head_rows import rows_of
from ..models.streams import Streams
from .kv import AskedCache, LayerCache
from .profile import NO_PROFILE, Profile
from .stand_ins import (
    AskingRope,
    Given,
    Kept,
    KeptNorm,
    Observed,
    Observer,
    PositionedRope,
    StreamMLP,
    WithOwnMask,
    rope_at,
)

FIRST_HANDED_OVER, HANDED_OVER_EVERY = 1, 6
"""Layers whose output the device computes while the host builds those behind them: unlike plain
steps, trees cannot be enqueued ahead, so the device would wait for all of it otherwise."""


FINAL = -1
"""The boundary behind the final norm."""


class UnsupportedModelError(UserError):
    """The model's structure is not one that can be run in pieces."""


class BorrowedModel:
    """A model that can be run in pieces: lower layers, single layers, head, early exit.

    Hidden states are (sequences, rows, h) throughout.

    Args:
        model: an mlx-lm model (LoRA and quantized layers included).
        streams: streams of the mounted adapter, or ``None``.
        own_masks: whether each layer makes its own mask, as sliding windows need: mlx-lm makes one
            mask for several layers, and does not give all of them their window.
        profile: measures the MHA rows.
        observe: called with number, input and output of every layer of a pass with streams.
        traced: whether passes are compiled or differentiated; then none keeps tables for the next,
            nor is any of it computed before it is complete.
        boundaries: hidden states to keep of a pass without streams, see ``take_features``; empty
            where no draft head is mounted.

    Raises:
        UnsupportedModelError: no list of layers, a layer without a rotary embedding that takes any
            positions where positions are not learned, or a part that the streams need is missing.
    """

    def __init__(
        self,
        model: nn.Module,
        streams: Streams | None = None,
        own_masks: bool = False,
        profile: Profile = NO_PROFILE,
        observe: Observer | None = None,
        traced: bool = False,
        boundaries: Sequence[int] = (),
    ):
        self._traced, self.boundaries = traced, boundaries
        self._mounted, self._architecture = streams, architecture_of(model_type_of(model))
        self._bare_top: nn.Module | None = None
        self._count = len(model.layers)
        self._rotations: set[Rotations] = set()  # told of every pass
        owner = _owner_of_layers(model)
        layers: list[Any] = self._with_positions(model.layers)
        lower = [WithOwnMask(layer, self._mask) for layer in layers] if own_masks else layers
        self._features: dict[int, mx.array] = {}
        if boundaries:
            self._owner, self._given = owner, Given(layers[0])
            self._embedding = _embedding_of(model, owner)
            norm = self._architecture.norm
            self._bare_top = _with_layers(model, owner, [self._given], without=norm)
            lower = [self._kept_around(number, layer) for number, layer in enumerate(lower)]
            if FINAL in boundaries:
                model = _with_norm(model, owner, norm, partial(self._keep, FINAL))
        self._filling = _with_layers(model, owner, lower)
        whole = lower
        if profile is not NO_PROFILE:
            last = Observed(len(lower) - 1, lower[-1], partial(_border, profile))
            whole = [*lower[:-1], last]
        self._whole = _with_layers(model, owner, whole)
        early = range(0) if traced else range(FIRST_HANDED_OVER, self._count, HANDED_OVER_EVERY)
        self._early = _with_layers(model, owner, _handed_over(whole, early))
        if streams is None:
            return
        first = streams.config.first_msa_layer
        self._stream_mlps: dict[int, StreamMLP] = {}
        self._asking: dict[int, AskingRope] = {}
        parts = [*lower[:first], *self._asking_layers(self._with_stream_mlps(layers))[first:]]
        if observe is not None:
            parts = [Observed(number, layer, observe) for number, layer in enumerate(parts)]
        self._parts = parts = _handed_over(parts, early)
        # The models below share all weights and differ in their layers: `_entry` has none, `_lower`
        # the MHA layers, and both keep what comes out; `_top`, `_stream_top` and `_bare_top` have
        # one that gives what it is told, so that norm and head alone are left.
        if streams.head is not None:
            self._embedding = _embedding_of(model, owner)
        self._given, self._kept = Given(layers[0]), Kept(layers[0])
        self._entry = _with_layers(model, owner, [self._kept])
        self._lower = _with_layers(model, owner, [*parts[:first], self._kept])
        self._top = _with_layers(model, owner, [self._given])
        self._stream_top, self._holder, self._head_name = _with_head_to_replace(self._top, owner)
        self._lm_head = self._holder[self._head_name]
        self._drafted: nn.Module | None = None
        if traced:
            mx.eval(self._stream_head.parameters())  # a compiled step captures values, not graphs

    @property
    def _streams(self) -> Streams:
        """The streams, of which all that asks for them has some."""
        assert self._mounted is not None
        return self._mounted

    def _with_positions(self, layers: Sequence[nn.Module]) -> list[nn.Module]:
        """Copy layers, with ropes that take a position for every row."""
        copies = [copy(layer) for layer in layers]
        if self._architecture.positions == "rope":
            names = [_attention_with_rope(number, layer) for number, layer in enumerate(layers)]
            ropes = [layer[name]["rope"] for layer, name in zip(layers, names, strict=True)]
            tables = [None] * len(ropes) if self._traced else shared_rotations(ropes, rope_at)
            self._rotations = {table for table in tables if table is not None}
            for layer, name, rope, table in zip(copies, names, ropes, tables, strict=True):
                layer[name] = copy(layer[name])
                layer[name]["rope"] = PositionedRope(rope, table)
        return copies

    def _with_stream_mlps(self, layers: Sequence[nn.Module]) -> list[nn.Module]:
        """Add the streams' adapters to copies of the layers; only passes with streams use them."""
        config = self._streams.config
        if config.stream_mlp == "base":
            return list(layers)
        copies = [copy(layer) for layer in layers]
        for number, layer in enumerate(copies):
            if "mlp" not in layer:
                raise UnsupportedModelError(
                    f"layer {number} has no mlp, which a stream_mlp of {config.stream_mlp!r} takes "
                    "the place of"
                )
            if number >= config.first_msa_layer:
                mlp = StreamMLP(layer["mlp"], self._streams, number)
                layer["mlp"] = self._stream_mlps[number] = mlp
        return copies

    def _asking_layers(self, layers: Sequence[nn.Module]) -> list[nn.Module]:
        """Copy the layers; where streams select keys, MSA layers tell their rows the queries."""
        config = self._streams.config
        if not config.stream_keys:
            return list(layers)
        copies = [copy(layer) for layer in layers]
        for number in range(config.first_msa_layer, len(layers)):
            name = _attention_with_rope(number, layers[number])
            attention = copies[number][name] = copy(layers[number][name])
            attention["rope"] = self._asking[number] = AskingRope(attention)
        return copies

    def logits(
        self, tokens: mx.array, caches: Sequence[LayerCache], early: bool = False
    ) -> mx.array:
        """Run all layers without streams; returns logits (sequences, rows, vocab).

        Args:
            tokens: (sequences, rows) int32.
            caches: each layer's KV cache or its stand-in.
            early: whether the device begins with the first layers while the last ones are built.
        """
        self._begin()
        return (self._early if early else self._whole)(tokens, cache=caches)

    def fill(self, tokens: mx.array, caches: Sequence[LayerCache]) -> None:
        """Run a pass only to fill the KV caches; no logits are computed.

        Args:
            tokens, caches: see ``logits``.
        """
        self._begin()
        self._filling(tokens, cache=caches)  # its head is never computed

    def _kept_around(self, number: int, layer: Any) -> Any:
        """Return a layer that keeps its input, or the last one's output, if that was asked for."""
        behind = number + 1 == self._count and self._count in self.boundaries
        if number not in self.boundaries and not behind:
            return layer

        def keep(number: int, hidden: mx.array, output: mx.array) -> None:
            self._keep(number, hidden)
            self._keep(number + 1, output)

        return Observed(number, layer, keep)

    def _keep(self, boundary: int, hidden: mx.array) -> None:
        self._features[boundary] = hidden

    def take_features(self) -> tuple[mx.array, ...]:
        """Return what the last pass without streams kept, and let go of it.

        Returns:
            (sequences, rows, h) for each of the ``boundaries``: the input of that layer; of the
            number of layers, the output of the last one; of ``FINAL``, what the head reads, the
            final norm's output.
        """
        features = tuple(self._features[boundary] for boundary in self.boundaries)
        self._features.clear()
        return features

    def lower(self, tokens: mx.array, caches: Sequence[LayerCache]) -> mx.array:
        """Run embedding and MHA layers; returns the main stream, the input of the first MSA layer.

        Args:
            tokens, caches: see ``logits``.
        """
        self._begin()
        self._lower(tokens, cache=caches)  # its head is never computed
        return self._kept.take()

    def entry(self, tokens: mx.array, caches: Sequence[LayerCache]) -> mx.array:
        """Run the embedding alone; returns the input of the first layer.

        Args:
            tokens, caches: see ``logits``.
        """
        self._entry(tokens, cache=caches)  # its head is never computed
        return self._kept.take()

    def layer(self, number: int, hidden: mx.array, cache: LayerCache, main_rows: int) -> mx.array:
        """Run one layer over main rows and, in MSA layers, stream rows behind them.

        Args:
            number: the layer's number.
            hidden: (sequences, rows, h) the layer's input.
            cache: the layer's KV cache or its stand-in, which also makes the mask. Where streams
                select keys, it is told the queries.
            main_rows: number of main rows.
        """
        if number == self._streams.config.first_msa_layer:
            self._begin()
        if number in self._asking:
            self._asking[number].rows = cast(AskedCache, cache)
        if number in self._stream_mlps:
            self._stream_mlps[number].main_rows = main_rows
        return self._parts[number](hidden, self._mask(hidden, cache), cache=cache)

    def _begin(self) -> None:
        """Begin a pass through some layers, whose rows have the same positions in all of them."""
        for rotations in self._rotations:
            rotations.begin()

    def embed(self, tokens: mx.array) -> mx.array:
        """Return the stored rows (.., h) of the embedding for tokens (..)."""
        return self._embedding(tokens)

    def head(self, hidden: mx.array) -> mx.array:
        """Apply final norm and LM head; returns logits (sequences, rows, vocab)."""
        return self._through(self._top, hidden)

    @property
    def _stream_head(self) -> nn.Module:
        """The head's rows of the tokens that the streams may draft, copied when first asked for."""
        if self._drafted is None:
            self._drafted = self._streams.head_rows(self._lm_head)
        return self._drafted

    def read_vocabulary(self) -> None:
        """Take the head's rows of the tokens that the streams may draft now."""
        if self._drafted is not None:
            self._drafted = self._streams.head_rows(self._lm_head)

    def release_vocabulary(self) -> None:
        """Let go of the head's rows until the streams guess again."""
        if self._mounted is not None:
            self._drafted, self._holder[self._head_name] = None, self._lm_head

    def bare_head(self, hidden: mx.array) -> mx.array:
        """Apply the LM head without the final norm; returns logits (sequences, rows, vocab)."""
        assert self._bare_top is not None
        return self._through(self._bare_top, hidden)

    def bare_head_of(self, tokens: mx.array | None) -> Callable[[mx.array], mx.array]:
        """Return a function like ``bare_head`` that scores tokens (n,) alone; ``None``: all."""
        if tokens is None:
            return self.bare_head
        assert self._bare_top is not None
        top, holder, name = _with_head_to_replace(self._bare_top, self._owner)
        holder[name] = rows_of(holder[name], tokens)
        return partial(self._through, top)

    def stream_head(self, hidden: mx.array, head: nn.Module | None = None) -> mx.array:
        """Apply final norm and LM head to streams; returns logits (sequences, rows, n).

        They are of all tokens, or of those of the draft vocabulary in its order.

        Args:
            hidden: (sequences, rows, h).
            head: the head of a few tokens, from ``stream_head_rows``; ``None``: of all n.
        """
        self._holder[self._head_name] = self._stream_head if head is None else head
        return self._through(self._stream_top, hidden)

    def stream_head_rows(self, places: mx.array) -> nn.Module:
        """Return the streams' head with the rows at ``places`` (m,) of its n alone."""
        return rows_of(self._stream_head, places)

    def early_exit(self, hidden: mx.array) -> mx.array:
        """Compute the logits (sequences, rows, vocab) of the early-exit pruner (section 3.3).

        Args:
            hidden: (sequences, rows, h) main rows at the input of the first MSA layer.
        """
        return self.head(self.early_exit_features(hidden))

    def early_exit_features(self, hidden: mx.array) -> mx.array:
        """Map main rows to the inputs (sequences, rows, h) of the early exit's norm and head."""
        return hidden + self._streams.pruner(hidden)

    def _through(self, top: nn.Module, hidden: mx.array) -> mx.array:
        """Run a model whose only layer returns ``hidden``; its embedding is never computed."""
        self._given.hidden = hidden
        tokens = mx.zeros(hidden.shape[:2], mx.int32)
        return top(tokens, cache=[None] * self._count)

    def _mask(self, hidden: mx.array, cache: LayerCache) -> mx.array | str | None:
        return cache.make_mask(hidden.shape[1], self._architecture.array_masks)


def _handed_over(layers: Sequence[Any], numbers: Container[int]) -> list[Any]:
    """The layers, of which some hand their output to the device at once."""
    return [
        Observed(number, layer, _begin_computing) if number in numbers else layer
        for number, layer in enumerate(layers)
    ]


def _begin_computing(number: int, hidden: mx.array, output: mx.array) -> None:
    mx.async_eval(output)


def _border(profile: Profile, number: int, hidden: mx.array, output: mx.array) -> None:
    """Tell ``profile`` that the last layer has run."""
    profile.border("MHA rows", output)


def model_type_of(model: nn.Module) -> str | None:
    """Return ``model_type`` of an mlx-lm model."""
    return getattr(model, "model_type", None)


# Copies of the modules that hold others ------------------------------------------------------


def _owner_of_layers(model: nn.Module) -> list[str]:
    """Find the path of names from the model to the module that holds its ``layers``.

    Raises:
        UnsupportedModelError: no module holds them.
    """
    for name, module in model.named_modules():
        if _same_layers(module.get("layers"), model.layers):
            return name.split(".") if name else []
    raise UnsupportedModelError("the model does not hold its layers in one list")


def _with_head_to_replace(
    model: nn.Module, owner: Sequence[str]
) -> tuple[nn.Module, nn.Module, str]:
    """Copy a model so far that its LM head can be replaced; other modules are shared.

    Args:
        model: a model from ``_with_layers``.
        owner: path of names to the module that holds the layers, and the embedding.

    Returns:
        The copy, its module that holds the head, and the head's name there.
    """
    root = module = copy(model)
    if "lm_head" in root:
        return root, root, "lm_head"
    for part in owner:  # the head is the embedding
        module[part] = copy(module[part])
        module = module[part]
    return root, module, "embed_tokens"


def _embedding_of(model: nn.Module, owner: Sequence[str]) -> nn.Module:
    """Return the embedding of tokens, which lies beside the layers.

    Raises:
        UnsupportedModelError: there is none.
    """
    module = model
    for name in owner:
        module = module[name]
    if "embed_tokens" not in module:
        raise UnsupportedModelError(
            "the model has no embed_tokens beside its layers, which a stream_head of 'conditioned' "
            "reads"
        )
    return module["embed_tokens"]


def _same_layers(value: Any, layers: Sequence[nn.Module]) -> bool:
    """Check if ``value`` is the list of these layers; ``model.layers`` may be a copy of it."""
    if not isinstance(value, list) or len(value) != len(layers):
        return False
    return all(one is other for one, other in zip(value, layers, strict=True))


def _with_layers(
    model: nn.Module, owner: Sequence[str], layers: list[Any], without: str | None = None
) -> nn.Module:
    """Copy a model with another list of layers; all other modules are shared.

    Args:
        model: an mlx-lm model; it is not changed.
        owner: path of names to the module that holds the layers.
        layers: the new list.
        without: name of a norm beside the layers to leave out.

    Raises:
        UnsupportedModelError: there is no such norm.
    """
    root = module = copy(model)
    for name in owner:
        module[name] = copy(module[name])
        module = module[name]
    if without is not None:
        if without not in module:
            raise UnsupportedModelError(
                f"the model has no {without} beside its layers, which a draft head passes by"
            )
        module[without] = nn.Identity()
    module["layers"] = layers
    return root


def _with_norm(
    model: nn.Module, owner: Sequence[str], name: str, keep: Callable[[mx.array], None]
) -> nn.Module:
    """Copy a model; ``keep`` is called with the output of its final norm, ``name``."""
    root = module = copy(model)
    for part in owner:
        module[part] = copy(module[part])
        module = module[part]
    module[name] = KeptNorm(module[name], keep)
    return root


def _attention_with_rope(number: int, layer: nn.Module) -> str:
    """Find the name of the attention within ``layer``, the model's ``number``-th.

    Raises:
        UnsupportedModelError: it has no rotary embedding, or one that does not depend on
            positions alone.
    """
    name = next((name for name, m in layer.children().items() if "rope" in m), None)
    if name is None:
        raise UnsupportedModelError(f"layer {number} has no attention with rope")
    if isinstance(layer[name]["rope"], DynamicNTKScalingRoPE):
        raise UnsupportedModelError(
            f"layer {number} scales its rope by the length of the text, "
            "expected a rope that depends on positions alone"
        )
    return name
