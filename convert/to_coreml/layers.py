"""Decoder layers in MIL, and the few operations that all functions share.

Rows are (rows, h) float16 throughout. Keys and values of new rows stand next to those of the cache:
both are scored, side by side in one softmax, so nothing is written before the end of a function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var

from specstream_mlx.models.streams import LowRank

from .weights import Value, WeightStore, array_of, constant, rows_of

HIDDEN = -30000.0
"""What is added to the scores of rows that a row does not see; half precision ends at 65504."""


@dataclass(frozen=True)
class NewRows:
    """The new rows of some layers of a function: ``main`` that stand for text, then streams'."""

    count: int
    angles: tuple[Var, Var]  # (rows, d / 2) cosines and sines of the rotary embedding
    scaled: tuple[Var, Var]  # the same for queries, times the scale of scores
    committed: Var  # (1, 1, cache rows) mask of the cache, alike for all rows
    among: Var  # (1, rows, rows) mask of the new rows
    main: int


class Network:
    """The parts of an mlx-lm model in MIL, within one function; its adapter's LoRA is mounted.

    The names of constants of the adapter begin with its name.
    """

    def __init__(self, model: nn.Module, store: WeightStore, adapter: str):
        self.store, self._adapter = store, adapter
        self._constants: dict[str, Var] = {}
        self._model, self._owner, self.layers = model, model.model, model.layers
        self.attention = self.layers[0].self_attn
        self.heads, self.kv_heads = self.attention.n_heads, self.attention.n_kv_heads
        self.head_dim = base_of(self.attention.q_proj).weight.shape[0] // self.heads

    def embed(self, tokens: Var) -> Var:
        """(rows, h) embeddings of tokens (rows,)."""
        weight = self.matrix("model.embed_tokens", self._owner.embed_tokens)
        return mb.gather(x=weight, indices=tokens, axis=0)

    @property
    def head(self) -> tuple[str, nn.Module]:
        """Name and module of the LM head, which may be the embedding."""
        if "lm_head" in self._model:
            return "lm_head", self._model.lm_head
        return "model.embed_tokens", self._owner.embed_tokens

    def final_norm(self, hidden: Var) -> Var:
        """(rows, h) after the norm that follows the last layer."""
        return self.norm("model.norm", self._owner.norm, hidden)

    def logits(self, hidden: Var) -> Var:
        """(rows, vocab) of rows (rows, h) after the last layer."""
        return self.linear(*self.head, self.final_norm(hidden))

    # Constants, each of which is one operation of the function -----------------------------------

    def constant(self, name: str, value: Value) -> Var:
        if name not in self._constants:
            self._constants[name] = constant(name, value)
        return self._constants[name]

    def array(
        self, name: str, make: Callable[[], mx.array | np.ndarray], dtype: type = np.float16
    ) -> Var:
        return self.constant(name, self.store.value(name, lambda: array_of(make(), dtype)))

    def matrix(self, name: str, module: nn.Module) -> Var:
        """(out, in) weight of a linear layer or an embedding."""
        return self.constant(name, self.store.matrix(name, module))

    def adapter_array(
        self, name: str, make: Callable[[], mx.array | np.ndarray], dtype: type = np.float16
    ) -> Var:
        """An array of the adapter alone."""
        return self.array(f"{self._adapter}.{name}", make, dtype)

    def rows(self, name: str, of: str, module: nn.Module, ids: np.ndarray) -> Var:
        """(rows, in) some rows of a weight, for the adapter."""
        name, whole = f"{self._adapter}.{name}", self.store.matrix(of, module)
        return self.constant(name, self.store.value(name, lambda: rows_of(whole, ids)))

    # Products -----------------------------------------------------------------------------------

    def linear(self, name: str, module: nn.Module, x: Var) -> Var:
        """A linear layer, with its LoRA if some is mounted."""
        base = base_of(module)
        bias = None
        if "bias" in base:
            bias = self.array(f"{name}.bias", lambda: base.bias)
        y = self.product(x, self.matrix(name, base), bias)
        if base is module:
            return y
        down, up = self.lora(name, module)
        return mb.add(x=y, y=self.product(self.product(x, down), up))

    def lora(self, name: str, module: nn.Module) -> tuple[Var, Var]:
        """A layer's LoRA: (r, in) and, scaled, (out, r)."""
        down = self.adapter_array(f"{name}.lora_a", lambda: module.lora_a.T)
        up = self.adapter_array(f"{name}.lora_b", lambda: module.scale * module.lora_b.T)
        return down, up

    def product(self, x: Var, weight: Var, bias: Var | None = None) -> Var:
        """(rows, out) of rows (rows, in) and a weight (out, in).

        Without a bias coremltools writes zeros of its own, for each product of each function.
        """
        if bias is None:
            count = weight.shape[0]
            bias = self.array(f"zeros{count}", lambda: np.zeros(count))
        return mb.linear(x=x, weight=weight, bias=bias)

    def low_rank(self, name: str, module: LowRank, x: Var) -> Var:
        """One of the streams' maps ``up(down(x))``."""
        down = self.adapter_array(f"{name}.down", lambda: module.down.weight)
        up = self.adapter_array(f"{name}.up", lambda: module.up.weight)
        return self.product(self.product(x, down), up)

    def norm(self, name: str, module: nn.RMSNorm, x: Var) -> Var:
        weight = self.array(f"{name}.weight", lambda: mx.tile(module.weight, 2))
        return rms_norm(x, module.eps, weight)

    # A layer ------------------------------------------------------------------------------------

    def layer(
        self,
        number: int,
        x: Var,
        rows: NewRows,
        caches: tuple[Var, Var],
        streams: Any = None,
    ) -> tuple[Var, Var, Var]:
        """One decoder layer: (rows, h), and the main rows' keys and values (kv_heads, main, d).

        ``caches`` are keys and values of all layers, (layers * kv_heads, cache rows, d) each;
        ``streams`` are ``StreamRows`` where there are some.
        """
        module, name = self.layers[number], f"model.layers.{number}"
        first, last = number * self.kv_heads, (number + 1) * self.kv_heads
        old_keys, old_values = (part(cache, 0, first, last) for cache in caches)
        normalised = self.input_norm(number, x)
        keys, values = self.keys_values(number, normalised, rows)
        if streams is not None:
            values = streams.turn(values)
        attention = module.self_attn
        queries = self.linear(f"{name}.self_attn.q_proj", attention.q_proj, normalised)
        queries = self._split(queries, self.heads, rows)
        if "q_norm" in attention:
            queries = self.norm(f"{name}.self_attn.q_norm", attention.q_norm, queries)
        queries = rotated(queries, rows.scaled)
        # Heads that share keys become rows of one product.
        group = self.heads // self.kv_heads
        queries = mb.reshape(x=queries, shape=(self.kv_heads, group * rows.count, self.head_dim))
        among = mb.tile(x=rows.among, reps=(1, group, 1)) if group > 1 else rows.among
        scores = [
            mb.add(x=mb.matmul(x=queries, y=seen, transpose_y=True), y=mask)
            for seen, mask in ((old_keys, rows.committed), (keys, among))
        ]
        shares = mb.softmax(x=mb.concat(values=scores, axis=-1), axis=-1)
        sizes = (old_keys.shape[1], rows.count)
        of_old, of_new = mb.split(x=shares, split_sizes=sizes, axis=-1)
        mixed = mb.add(x=mb.matmul(x=of_old, y=old_values), y=mb.matmul(x=of_new, y=values))
        mixed = mb.reshape(x=mixed, shape=(self.heads, rows.count, self.head_dim))
        mixed = mb.transpose(x=mixed, perm=(1, 0, 2))
        mixed = mb.reshape(x=mixed, shape=(rows.count, self.heads * self.head_dim))
        x = mb.add(x=x, y=self.linear(f"{name}.self_attn.o_proj", attention.o_proj, mixed))
        if rows.main < rows.count:
            keys, values = (part(new, 1, 0, rows.main) for new in (keys, values))
        normalised = self.norm(
            f"{name}.post_attention_layernorm", module.post_attention_layernorm, x
        )
        mlp = self.mlp if streams is None else streams.mlp
        return mb.add(x=x, y=mlp(number, normalised)), keys, values

    def input_norm(self, number: int, x: Var) -> Var:
        """(rows, h) that a layer's attention reads."""
        name = f"model.layers.{number}.input_layernorm"
        return self.norm(name, self.layers[number].input_layernorm, x)

    def keys_values(self, number: int, x: Var, rows: NewRows) -> tuple[Var, Var]:
        """(kv_heads, rows, d) keys and values of normalised rows (rows, h)."""
        module, name = self.layers[number].self_attn, f"model.layers.{number}.self_attn"
        keys = self._split(self.linear(f"{name}.k_proj", module.k_proj, x), self.kv_heads, rows)
        if "k_norm" in module:
            keys = self.norm(f"{name}.k_norm", module.k_norm, keys)
        values = self.linear(f"{name}.v_proj", module.v_proj, x)
        return rotated(keys, rows.angles), self._split(values, self.kv_heads, rows)

    def mlp(self, number: int, x: Var) -> Var:
        """A layer's MLP over normalised rows (rows, h)."""
        module, name = self.layers[number].mlp, f"model.layers.{number}.mlp"
        gate = mb.silu(x=self.linear(f"{name}.gate_proj", module.gate_proj, x))
        up = self.linear(f"{name}.up_proj", module.up_proj, x)
        return self.linear(f"{name}.down_proj", module.down_proj, mb.mul(x=gate, y=up))

    def _split(self, x: Var, heads: int, rows: NewRows) -> Var:
        """(heads, rows, d) of (rows, heads * d)."""
        x = mb.reshape(x=x, shape=(rows.count, heads, self.head_dim))
        return mb.transpose(x=x, perm=(1, 0, 2))


def base_of(module: nn.Module) -> nn.Module:
    """A linear layer without the LoRA that is mounted on it."""
    return module.linear if "lora_a" in module else module


def rms_norm(x: Var, epsilon: float, twice: Var | None = None) -> Var:
    """RMS norm as the layer norm of [x, -x], whose mean is 0: no square leaves half precision."""
    both = mb.concat(values=[x, mb.mul(x=x, y=np.float16(-1))], axis=-1)
    weights = {} if twice is None else {"gamma": twice}
    both = mb.layer_norm(x=both, axes=[-1], epsilon=np.float16(epsilon), **weights)
    return part(both, x.rank - 1, 0, x.shape[-1])


def rotated(x: Var, angles: tuple[Var, Var]) -> Var:
    """(.., rows, d) whose pairs, half of d apart, are turned by cosines and sines (rows, d / 2)."""
    half = x.shape[-1] // 2
    first, second = mb.split(x=x, split_sizes=(half, half), axis=-1)
    cos, sin = angles
    left = mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin))
    right = mb.add(x=mb.mul(x=first, y=sin), y=mb.mul(x=second, y=cos))
    return mb.concat(values=[left, right], axis=-1)


def part(x: Var, axis: int, begin: int, end: int) -> Var:
    """``x[begin:end]`` along an axis."""
    first, last = [0] * x.rank, list(x.shape)
    first[axis], last[axis] = begin, end
    return mb.slice_by_index(x=x, begin=first, end=last)


def mask(sees: Var) -> Var:
    """0 where something is seen (1), else ``HIDDEN``."""
    return mb.mul(x=mb.sub(x=np.float16(1), y=sees), y=np.float16(HIDDEN))


def rope_tables(rope: Any, size: int, count: int) -> np.ndarray:
    """(count, d) float32: cosines, then sines, by which a layer's rope turns at each position.

    A rope is linear in each pair, so it is asked about the pair (1, 0).
    """
    unit = mx.array([1.0] * (size // 2) + [0.0] * (size // 2))
    rotated = rope(mx.broadcast_to(unit, (1, 1, count, size)), offset=0)
    return np.array(rotated)[0, 0]
