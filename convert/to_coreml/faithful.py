"""Whether a package computes what its model does: checked before the package is there.

MLX reads a text in float32. The package, executed with every operation rounded to half precision,
must prefer the same token after each of its tokens, near-ties apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import DraftTree, Plan, root_only
from specstream_mlx.engine.step import Decoder, StepResult
from specstream_mlx.engine.verify.rule import VerifyRule
from specstream_mlx.errors import UserError
from specstream_mlx.loading.load import load
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.terminal.progress import Show

from .contents import Contents
from .decoder import PackageDecoder
from .evaluate import Package
from .supported import Sizes

TEXT = (
    "The old harbour lies between two hills. In the morning boats go out for herring, and by noon "
    "the market on the quay is full of people who argue about prices, the weather and the new "
    "bridge. Last Tuesday Ana asked Tom whether he could bring the 12 boxes back before Friday. He "
    "wrote that he would, but the van broke down near the station and nobody answered the phone."
)

NEAR_TIE = 0.1
"""The most by which MLX may prefer another token than a package does."""

Readings = Mapping[str, tuple[list[int], np.ndarray]]
"""For each adapter: the text's tokens, and logits (n, vocab) after those of its second half."""


def readings(model: Path, adapters: Mapping[str, Path | None], sizes: Sizes) -> Readings:
    """Read ``TEXT`` with MLX in float32, with each adapter; ``None``: the bare base."""
    loaded, tokenizer = load(model)
    loaded.model.set_dtype(mx.float32)
    by_adapter = {}
    for name, path in adapters.items():
        loaded.swap_adapter(path)
        tokens = chat_prompt(tokenizer, TEXT, loaded.prompt_template)[: sizes.context]
        decoder = Decoder(loaded.model, loaded.streams, make_caches(loaded.model, loaded.config))
        logits = [np.array(result.logits) for result in _steps(decoder, tokens, sizes)]
        by_adapter[name] = tokens, np.concatenate(logits)
    return by_adapter


def check_faithful(contents: Contents, expected: Readings, show: Show) -> None:
    """Check that a package prefers the tokens that MLX does, in half precision, near-ties apart."""
    executor = Package(contents.path, "fp16")
    for number, (name, (tokens, logits)) in enumerate(expected.items()):
        show(number, len(expected), f"Comparing {name} with MLX")
        steps = _steps(PackageDecoder(contents, executor, name), tokens, contents.sizes)
        predicted = np.concatenate([np.array(result.predictions) for result in steps])
        gaps = logits.max(axis=1) - np.take_along_axis(logits, predicted[:, None], axis=1)[:, 0]
        if not gaps.max() <= NEAR_TIE:
            count = (~(gaps <= NEAR_TIE)).sum()
            raise UserError(
                f"{name}: in half precision the package prefers another token than MLX in float32 "
                f"at {count} of {len(gaps)} places of a text, by up to {gaps.max():.2g}, expected "
                f"at most {NEAR_TIE} (--no-check exports it all the same)"
            )


def _steps(
    decoder: Decoder | PackageDecoder, tokens: list[int], sizes: Sizes
) -> Iterator[StepResult]:
    """Read half of a text as a prompt, then the rest as drafts that are all accepted."""
    half, plan = len(tokens) // 2, Plan(root_only(0), place="none")
    if isinstance(decoder, Decoder) and decoder.streams is not None:
        plan = replace(plan, place="nodes", streams=decoder.streams.config.num_streams)
    for first in range(0, half, sizes.chunk):
        decoder.prefill(mx.array(tokens[first : min(first + sizes.chunk, half)]))
    for first in range(half, len(tokens), sizes.most_nodes):
        path = np.array(tokens[first : first + sizes.most_nodes], np.int32)
        depths = np.arange(len(path), dtype=np.int32)
        tree = DraftTree(path, depths - 1, depths)
        yield from decoder.step([replace(plan, tree=tree)], [VerifyRule()])
        decoder.commit([depths.tolist()], [depths.tolist()])
