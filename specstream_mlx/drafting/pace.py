"""The pace of a loaded model: looked up by all that its steps' costs depend on."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import UserError
from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..loading import SpeculativeModel, weight_files
from . import kept_costs
from .cost import StepCosts
from .rule import AutoDrafting, Pace, new_pace, places_of

_VERSION = 5
_LONG = 4096  # rows behind which few texts of the first minutes end


def pace_of(model: SpeculativeModel, quantization: KVQuantization = NEVER_QUANTIZED) -> Pace:
    """The pace of a model with its present adapter; made when it is first asked for.

    Args:
        model: keeps it, one for each adapter and kind of KV cache; the costs of adapters with the
            same shapes are the same object.
        quantization: of the KV cache.
    """
    streams = model.streams and model.streams.config
    facts = _facts(model, quantization)
    path = _file(facts)
    key = path, model.adapter and model.adapter.path
    if key not in model.paces:
        known = (pace.costs for (other, _), pace in model.paces.items() if other == path)
        names = {"model": str(model.path), "adapter": model.adapter and str(model.adapter.path)}
        costs = next(known, None) or StepCosts(path, facts, places_of(streams), names)
        model.paces[key] = new_pace(costs, streams)
    return model.paces[key]


def auto_drafting(
    model: SpeculativeModel,
    prompt: Sequence[int],
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> AutoDrafting:
    """Plan a text by the rule, at the pace of this model and adapter.

    Args:
        model: base and adapter.
        prompt: token ids.
        quantization: of the KV cache.
    """
    streams = model.streams and model.streams.config
    pace = pace_of(model, quantization)
    return AutoDrafting(pace, prompt, streams, model.config["vocab_size"])


def _file(facts: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    return kept_costs.directory() / f"{name}.json"


def _facts(model: SpeculativeModel, quantization: KVQuantization) -> dict[str, Any]:
    """Everything that the cost of a step depends on, as JSON has it."""
    kv_cache = None
    if quantization.bits is not None and quantization.start <= _LONG:
        kv_cache = [quantization.bits, quantization.group_size, quantization.start]
    streams = model.streams and asdict(model.streams.config) | {"prompt_template": None}
    adapter = model.adapter and model.adapter.config
    facts = {
        "version": _VERSION,
        "base": model.base_fingerprint,
        "weights": _weights(model),
        "quantization": model.config.get("quantization"),
        "held": model.held and [model.held.form, model.held.row_blocks],
        "streams": streams,
        "lora": adapter and [adapter.get("num_layers"), adapter.get("lora_parameters")],
        "kv_cache": kv_cache,
        "device": kept_costs.device_facts(),
    }
    return json.loads(json.dumps(facts, default=str))


def _weights(model: SpeculativeModel) -> list[Any]:
    with suppress(UserError, OSError):  # a model may have been made in memory
        return [[path.name, path.stat().st_size] for path in weight_files(model.path)]
    return []
