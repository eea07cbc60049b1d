"""Recipes of mixed quantization: which layers get more bits than the others.

The recipes ``mixed_*`` are mlx-lm's. ``msa_<low>_<high>`` keeps what drafts depend on at more bits:
the MSA layers, where the streams run, and the embeddings and the head, which every draft passes.
``embeddings_4_8`` keeps only these, as llama.cpp's 4-bit files mostly do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx_lm.convert import QUANT_RECIPES, mixed_quant_predicate_builder

from specstream_mlx.errors import UserError

MSA_RECIPES = ("msa_4_6", "msa_4_8")
_EMBEDDINGS_RECIPE = "embeddings_4_8"
RECIPES = (*QUANT_RECIPES, _EMBEDDINGS_RECIPE, *MSA_RECIPES)


@dataclass(frozen=True)
class Quantization:
    """The affine quantization of a base's layers; none without bits and recipe.

    Attributes:
        bits: 4 or 8, of every layer.
        group_size: weights that share a scale: 32, 64 or 128.
        recipe: one of ``RECIPES``, instead of ``bits``.
        num_msa_layers: N_s, for the recipes that need it.
    """

    bits: int | None = None
    group_size: int = 64
    recipe: str | None = None
    num_msa_layers: int | None = None

    @property
    def is_asked(self) -> bool:
        """True if layers are quantized at all."""
        return self.bits is not None or self.recipe is not None


Predicate = Callable[..., bool | dict[str, Any]]


def quant_predicate(
    recipe: str, model: nn.Module, group_size: int, num_msa_layers: int | None
) -> tuple[Predicate, int]:
    """The function that tells mlx-lm's ``quantize_model`` how to quantize each layer.

    Args:
        recipe: one of ``RECIPES``.
        model: an mlx-lm model.
        group_size: weights that share a scale, in every layer.
        num_msa_layers: N_s, the number of top layers at more bits; required by ``MSA_RECIPES`` and
            refused with the others.

    Returns:
        The function of a module's path and the module, and the fewest bits that it gives.

    Raises:
        UserError: the recipe is unknown or the model lacks the layers it names, or
            ``num_msa_layers`` is missing, out of range or given in vain.
    """
    if recipe not in RECIPES:
        raise UserError(f"the recipe is {recipe!r}, expected one of {', '.join(RECIPES)}")
    low, high = (int(bits) for bits in recipe.split("_")[1:])
    if recipe not in MSA_RECIPES and num_msa_layers is not None:
        raise UserError(
            f"num_msa_layers is {num_msa_layers} with the recipe {recipe}, "
            f"expected it with one of {', '.join(MSA_RECIPES)} only"
        )
    if recipe in QUANT_RECIPES:
        try:
            return mixed_quant_predicate_builder(recipe, model, group_size), low
        except ValueError as error:
            raise UserError(f"the recipe {recipe} does not fit the model: {error}") from None
    count = len(model.layers)
    if recipe == _EMBEDDINGS_RECIPE:
        num_msa_layers = 0
    elif num_msa_layers is None or not 1 <= num_msa_layers <= count:
        raise UserError(
            f"num_msa_layers is {num_msa_layers} with the recipe {recipe}, expected 1 to {count}"
        )

    def predicate(path: str, _: nn.Module) -> dict[str, Any]:
        rest = path.partition("layers.")[2]
        lower = bool(rest) and int(rest.split(".")[0]) < count - num_msa_layers
        return {"group_size": group_size, "bits": low if lower else high, "mode": "affine"}

    return predicate, low
