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
_TOLERANCES = {mx.float32: 1e-3}
_ROUGH = 5e-2
"""The largest difference allowed, relative to the largest logit; a wrong mask shows as more."""


def check_tree(model: Any, config: Mapping[str, Any]) -> None:
    """Compare a small tree with its paths: whole, with streams beside it, and pruned."""
    kind = f"model_type {config['model_type']!r} is not of a tested architecture and"
    tokens = np.random.default_rng(0).integers(0, config["vocab_size"], _PREFIX + len(_PARENTS))
    prefix, drafts = tokens[:_PREFIX].tolist(), tokens[_PREFIX:].astype(np.int32)
    tree = DraftTree(drafts, np.array(_PARENTS, np.int32), np.array(_DEPTHS, np.int32))
    try:
        paths = [[*prefix, *tree.tokens[tree.path(node)].tolist()] for node in range(len(tree))]
        expected = mx.stack([model(mx.array([path]))[0, -1] for path in paths])
        passes = _passes(model, config, prefix, tree)
        mx.eval(expected, *(logits for _, _, logits in passes))
    except UserError:
        raise
    except Exception as error:  # a model file may fail in any way on rows that it does not expect
        text = " ".join(str(error).split())[:240] or type(error).__name__
        raise UserError(f"{kind} cannot be run over a tree: {text}") from None
    tolerance = _TOLERANCES.get(expected.dtype, _ROUGH)
    for name, nodes, logits in passes:
        wanted = expected[nodes].astype(mx.float32)
        away = mx.abs(logits.astype(mx.float32) - wanted).max() / mx.abs(wanted).max()
        far = float(np.array(away))
        if not far <= tolerance:
            raise UserError(
                f"{kind} its logits over a tree {name} differ from those of the tree's paths by "
                f"{far:.1e} of the largest, expected at most {tolerance:.0e}"
            )


def _passes(
    model: Any, config: Mapping[str, Any], prefix: list[int], tree: DraftTree
) -> list[tuple[str, mx.array, mx.array]]:
    """Run the tree in each way; returns the way's name, the kept nodes, and their logits."""
    layers, hidden_size = config["num_hidden_layers"], config["hidden_size"]
    stream_config = StreamConfig(
        mode="lossless",
        num_streams=2,
        num_msa_layers=max(1, layers // 2),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        stream_init="value_rotation",
        value_rotation_epsilon=0.1,
    )
    streams = Streams(stream_config)
    passes = []
    for name, plan in (
        ("as a whole", Plan(tree, "none")),
        ("with streams", Plan(tree, "beside", streams=2, width=4)),
        ("that is pruned", Plan(tree, "beside", streams=2, width=4, keep=4)),
    ):
        decoder = Decoder(model, streams, make_caches(model, config))
        decoder.prefill(mx.array(prefix))
        [result] = decoder.step([plan], [VerifyRule()])
        assert result.logits is not None
        kept = mx.arange(len(tree)) if result.kept is None else result.kept
        passes.append((name, kept, result.logits))
    return passes
