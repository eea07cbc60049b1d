"""The pace of a model with an adapter, kept by all that the costs of its steps depend on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..engine.verify.rule import VerifyRule
from ..loading import SpeculativeModel
from . import kept_costs
from .auto import AutoDrafting, Pace, new_pace, places_of
from .cost import StepCosts
from .proposer import Material
from .settings import USUAL, Proposers

_VERSION = 7
_LONG = 4096  # rows that few texts of the first minutes reach

_PACES: dict[tuple[Path, Path, Path | None], Pace] = {}
"""Paces by the file of their costs, model and adapter, for as long as the program runs."""


def pace_of(model: SpeculativeModel, quantization: KVQuantization = NEVER_QUANTIZED) -> Pace:
    """Return the pace of a model with its present adapter; make it at the first call.

    Args:
        model: base and adapter; adapters of the same shapes share one object of costs.
        quantization: settings of the KV cache's quantization.
    """
    streams = model.guessing
    adapter = model.adapter.path if model.adapter else None
    facts = _facts(model, quantization)
    path = _file(facts)
    key = path, model.path, adapter
    if key not in _PACES:
        known = (pace.costs for (other, *_), pace in _PACES.items() if other == path)
        names = {"model": str(model.path), "adapter": str(adapter) if adapter else None}
        costs = next(known, None) or StepCosts(path, facts, places_of(streams), names)
        _PACES[key] = new_pace(costs, streams)
    return _PACES[key]


def auto_drafting(
    model: SpeculativeModel,
    prompt: Sequence[int],
    quantization: KVQuantization = NEVER_QUANTIZED,
    proposers: Proposers = USUAL,
    rule: VerifyRule | None = None,
) -> AutoDrafting:
    """Plan a text by the rule, at the pace of this model and adapter.

    Args:
        model: base and adapter.
        prompt: token ids.
        quantization: settings of the KV cache's quantization.
        proposers: what proposes beside the streams.
        rule: the text's verify rule, see ``Material``.
    """
    material = Material(prompt, model, rule)
    own = [make(material) for make in proposers.makers]
    pace, vocab_size = pace_of(model, quantization), model.config["vocab_size"]
    return AutoDrafting(pace, model.guessing, vocab_size, own)


def _file(facts: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
    return kept_costs.directory() / f"{name}.json"


def _facts(model: SpeculativeModel, quantization: KVQuantization) -> dict[str, Any]:
    """Collect everything that the cost of a step depends on, as JSON values."""
    kv_cache = None
    if quantization.bits is not None and quantization.start <= _LONG:
        kv_cache = [quantization.bits, quantization.group_size, quantization.start]
    guessing = model.guessing
    streams = guessing and asdict(guessing) | {"mode": guessing.mode, "prompt_template": None}
    adapter, held = model.adapter and model.adapter.config, model.held
    facts = {
        "version": _VERSION,
        "base": model.base_fingerprint,
        "quantization": model.config.get("quantization"),
        "held": held and [held.form, held.row_blocks, held.stored_bytes, held.dtype],
        "streams": streams,
        "lora": adapter and [adapter.get("num_layers"), adapter.get("lora_parameters")],
        "kv_cache": kv_cache,
        "processes": model.ranks.size if model.ranks else 1,
        "device": kept_costs.device_facts(),
    }
    if model.ranks is not None:
        facts["route"] = model.ranks.route
    return json.loads(json.dumps(facts, default=str))
