"""The quantized KV cache that mlx_lm offers: when its rows become quantized ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, maybe_quantize_kv_cache
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from ..errors import UserError
from ..models.architectures import ARCHITECTURES, architecture_of, head_size
from ..options import check_arguments
from .plan import DraftTree

# mlx_lm stores float rows until a pass ends at row ``start`` or after it, then quantizes all rows
# at once. To print the same text, a tree must not reach past that pass. Rows computed together
# differ from single ones in their last bits, so a value halfway between two quantized ones, and
# with it a near-tie, may fall otherwise than in mlx_lm.


@dataclass(frozen=True)
class KVQuantization:
    """When and how KV caches are quantized, as in mlx_lm; without ``bits`` they are not."""

    bits: int | None = None
    group_size: int = 64
    start: int = DEFAULT_QUANTIZED_KV_START

    def __post_init__(self) -> None:
        check_arguments(
            kv_bits=self.bits, kv_group_size=self.group_size, quantized_kv_start=self.start
        )

    def check(self, model: nn.Module, config: Mapping[str, Any]) -> None:
        if self.bits is None:
            return
        model_type = config["model_type"]
        architecture = architecture_of(model_type)
        if not architecture.quantized_kv:
            able = tuple(name for name, entry in ARCHITECTURES.items() if entry.quantized_kv)
            raise UserError(
                f"kv_bits is {self.bits}, but model_type is {model_type!r}, whose attention is not "
                f"known to read a quantized KV cache, expected one of {able}"
            )
        for number, cache in enumerate(make_prompt_cache(model)):
            if type(cache) is not KVCache:
                raise UserError(
                    f"kv_bits is {self.bits}, but layer {number} has a sliding window, for which "
                    f"mlx_lm keeps a {type(cache).__name__}, expected a KVCache: "
                    "no other can be quantized"
                )
        head_dim = head_size(config)
        if head_dim % self.group_size:
            raise UserError(
                f"kv_group_size is {self.group_size}, expected one that divides the model's "
                f"head_dim of {head_dim}"
            )

    def apply(self, caches: list[Any]) -> None:
        """Quantize the caches in the list once they are long enough; call this between passes."""
        maybe_quantize_kv_cache(caches, self.start, self.group_size, self.bits)

    def fitting(self, tree: DraftTree, cache: Any) -> DraftTree:
        """Cut ``tree`` to the depth at which the cache is to be quantized, if it reaches that."""
        if self.bits is None or isinstance(cache, QuantizedKVCache):
            return tree
        return tree.to_depth(max(0, self.start - 1 - cache.offset))


NEVER_QUANTIZED = KVQuantization()
