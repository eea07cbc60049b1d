"""A check at load that a model computes the same logits over a small tree as over its paths.

Some of mlx-lm's models ignore masks or positions that they are given and answer wrongly without
an error, so models that are not of a tested architecture are checked.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import UserError
from ..models.streams import Streams
from ..stream_config import StreamConfig
from .kv import make_caches
from .plan import DraftTree, Plan
from .step import Decoder
from .verify.rule import VerifyRule

_PARENTS = [-1, 0, 0, 1, 1, 2]
_DEPTHS = [0, 1, 1, 2, 2, 2]
_PREFIX = 5


def check_tree(model: Any, config: Mapping[str, Any]) -> None:
    """Compare a small tree with its paths: whole, with streams, and pruned."""
    kind = f"model_type {config['model_type']!r} is not of a tested architecture and"
    tokens = np.random.default_rng(0).integers(0, config["vocab_size"], _PREFIX + len(_PARENTS))
    prefix, drafts = tokens[:_PREFIX].tolist(), tokens[_PREFIX:].astype(np.int32)
    tree = DraftTree(drafts, np.array(_PARENTS, np.int32), np.array(_DEPTHS, np.int32))
    layers = config["num_hidden_layers"]
    streams = StreamConfig(
        mode="lossless",
        num_streams=2,
        num_msa_layers=max(1, layers // 2),
        hidden_size=config["hidden_size"],
        num_hidden_layers=layers,
        stream_init="value_rotation",
        value_rotation_epsilon=0.1,
    )
    plans = {
        "as a whole": Plan(tree, "none"),
        "with streams": Plan(tree, "nodes", streams=2, width=4),
        "that is pruned": Plan(tree, "nodes", streams=2, width=4, keep=4),
    }
    try:
        paths = [[*prefix, *tree.tokens[tree.path(node)].tolist()] for node in range(len(tree))]
        expected = mx.stack([model(mx.array([path]))[0, -1] for path in paths])
        results = []
        for plan in plans.values():
            decoder = Decoder(model, Streams(streams), make_caches(model, config))
            decoder.prefill(mx.array(prefix))
            results += decoder.step([plan], [VerifyRule()])
        mx.eval(expected, *(result.logits for result in results))
    except UserError:
        raise
    except Exception as error:  # a model file may fail in any way on rows that it does not expect
        text = " ".join(str(error).split())[:240] or type(error).__name__
        raise UserError(f"{kind} cannot be run over a tree: {text}") from None
    tolerance = 1e-3 if expected.dtype == mx.float32 else 5e-2  # a wrong mask shows as more
    for name, result in zip(plans, results, strict=True):
        wanted = (expected if result.kept is None else expected[result.kept]).astype(mx.float32)
        assert result.logits is not None
        away = mx.abs(result.logits.astype(mx.float32) - wanted).max() / mx.abs(wanted).max()
        far = float(away)
        if not far <= tolerance:
            raise UserError(
                f"{kind} its logits over a tree {name} differ from those of the tree's paths by "
                f"{far:.1e} of the largest, expected at most {tolerance:.0e}"
            )
