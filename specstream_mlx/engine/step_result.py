"""What one decoding step leaves on the device, and how the host reads it."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..drafting.tree import DraftTree


@dataclass
class StepResult:
    """Device arrays of one step, not yet evaluated.

    Attributes:
        last: scalar, the last accepted node among the kept ones.
        kept: (m,) indices into the tree of the kept nodes; ``None``: all of them.
        in_play: (m,) which kept nodes are above the threshold; ``None`` like ``kept``.
        predictions: (m,) the target's token after each kept node, as the verify rule has it.
        logits: (m, vocab) of the main stream, after the logits processors.
        candidates: (gamma, k) the streams' tokens at the accepted node, best first, or in the order
            in which they were drawn.
        log_probs: (gamma, k) their log-probabilities in nats.
        stream_logits: (gamma, vocab) at the accepted node.
        has_streams: scalar bool, whether the accepted node has streams; if not, ``candidates``,
            ``log_probs`` and ``stream_logits`` mean nothing. ``None``: every node has.
    """

    last: mx.array
    kept: mx.array | None
    in_play: mx.array | None
    predictions: mx.array
    logits: mx.array
    candidates: mx.array | None = None
    log_probs: mx.array | None = None
    stream_logits: mx.array | None = None
    has_streams: mx.array | None = None

    def guesses(self) -> tuple[np.ndarray, np.ndarray]:
        """``candidates`` and ``log_probs`` on the host; (0, 0) where no streams ran."""
        missed = self.has_streams is not None and not self.has_streams.item()
        if self.candidates is None or missed:
            return np.empty((0, 0), np.int32), np.empty((0, 0), np.float32)
        return np.array(self.candidates), np.array(self.log_probs)

    def accepted(self, tree: DraftTree) -> tuple[int, list[int], list[int]]:
        """How many nodes were tested, the accepted path in the tree, and among the kept nodes."""
        last = self.last.item()
        if self.kept is None:
            path = tree.path(last)
            return len(tree), path, path
        kept = np.array(self.kept).tolist()
        path = tree.path(kept[last])
        return int(np.array(self.in_play).sum()), path, [kept.index(node) for node in path]

    def prediction(self) -> int:
        """The correction or bonus token."""
        return int(np.array(self.predictions)[self.last.item()])

    def arrays(self) -> list[mx.array]:
        """What the host reads, to be evaluated together."""
        arrays = [self.last, self.predictions]
        optional = [self.kept, self.in_play, self.candidates, self.log_probs, self.has_streams]
        return arrays + [array for array in optional if array is not None]
