"""The fingerprint of a base, the same in PyTorch, converted and quantized; adapters store it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..options import NUMBER
from .architectures import completed
from .rope import rope_parameters

_FIELDS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings"),
)


def fingerprint(base_config: Mapping[str, Any]) -> str:
    """Digest the architecture fields of a base's ``config.json``, given or left to defaults."""
    config = completed(base_config)
    facts = {name: config.get(name) for name in _FIELDS}
    heads = facts["num_attention_heads"]
    facts["num_key_value_heads"] = facts["num_key_value_heads"] or heads
    if facts["head_dim"] is None and heads and facts["hidden_size"]:
        facts["head_dim"] = facts["hidden_size"] // heads
    facts["tie_word_embeddings"] = bool(facts["tie_word_embeddings"])
    theta = rope_parameters(config, "full_attention").get("rope_theta")
    if theta is not None:
        NUMBER.check("rope_theta", theta)
    facts["rope_theta"] = None if theta is None else float(theta)
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
