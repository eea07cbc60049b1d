"""The bare forwards that a decoding step is measured against.

A bare forward sends as many rows through the same layers of the same model (LoRA included), by
mlx-lm's own code, with a causal mask behind as many committed tokens: no tree, no streams'
adapters, no drafts. Every pass is timed by itself. ``products`` are those with weights alone.
"""

import time
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache

from .step_rows import StepRows


class BareForwards:
    """The model's own layers, run on any number of rows behind a given prefix."""

    def __init__(self, model: nn.Module, first_msa_layer: int, prefix: Sequence[int]):
        self.model, self.first = model, first_msa_layer
        self.caches = make_prompt_cache(model)
        self.extend(prefix)

    def extend(self, tokens: Sequence[int]) -> None:
        """Put ``tokens`` behind the prefix."""
        mx.eval(self.model(mx.array(list(tokens))[None], cache=self.caches))

    def seconds(self, rows: StepRows) -> float:
        """The sum of the passes of a step, each timed by itself."""
        return self._sum(rows, self._layers, self._head)

    def products(self, rows: StepRows) -> float:
        """The same for the products with the model's weights alone, LoRA left out."""
        return self._sum(rows, self._layer_products, self._head_product)

    def _sum(
        self,
        rows: StepRows,
        layers: Callable[[int, int, int], float],
        head: Callable[[int], float],
    ) -> float:
        total = layers(rows.lower, 0, self.first)
        total += layers(rows.upper, self.first, len(self.caches))
        total += sum(map(head, rows.heads))
        if rows.deferred:
            total += layers(rows.deferred, self.first, len(self.caches))
            total += head(rows.deferred)
        return total

    def _hidden(self, rows: int) -> mx.array:
        tokens = mx.arange(rows) % 100
        hidden = self.model.model.embed_tokens(tokens[None])
        mx.eval(hidden)
        return hidden

    def _layers(self, rows: int, start: int, end: int) -> float:
        hidden = self._hidden(rows)
        caches = self.caches[start:end]
        began = time.perf_counter()
        mask = "causal" if rows > 1 else None
        for layer, cache in zip(self.model.layers[start:end], caches, strict=True):
            hidden = layer(hidden, mask, cache=cache)
        mx.eval(hidden)
        seconds = time.perf_counter() - began
        trim_prompt_cache(caches, rows)
        return seconds

    def _head(self, rows: int) -> float:
        hidden = self._hidden(rows)
        began = time.perf_counter()
        mx.eval(self._output(self.model.model.norm(hidden)))
        return time.perf_counter() - began

    def _output(self, hidden: mx.array) -> mx.array:
        if self.model.args.tie_word_embeddings:
            return self.model.model.embed_tokens.as_linear(hidden)
        return self.model.lm_head(hidden)

    def _layer_products(self, rows: int, start: int, end: int) -> float:
        linear = [
            module
            for layer in self.model.layers[start:end]
            for _, module in layer.named_modules()
            if isinstance(module, nn.Linear | nn.QuantizedLinear)
        ]
        widths = {_width(module) for module in linear}
        inputs = {width: mx.random.normal((1, rows, width)) for width in widths}
        mx.eval(inputs)
        began = time.perf_counter()
        mx.eval([module(inputs[_width(module)]) for module in linear])
        return time.perf_counter() - began

    def _head_product(self, rows: int) -> float:
        hidden = self._hidden(rows)
        began = time.perf_counter()
        mx.eval(self._output(hidden))
        return time.perf_counter() - began


def _width(module: nn.Linear | nn.QuantizedLinear) -> int:
    """Return the number of inputs of a linear module."""
    columns = module.weight.shape[1]
    return columns * 32 // module.bits if isinstance(module, nn.QuantizedLinear) else columns
