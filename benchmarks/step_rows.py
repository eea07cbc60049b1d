"""The rows that one decoding step sends through each part of the model."""

from dataclasses import dataclass

from specstream_mlx.engine.plan import Plan


@dataclass(frozen=True)
class StepRows:
    """Rows of one step.

    The head is passed up to three times, since each pass waits for what the last one decided: by
    the early exit, by the kept nodes, and by the accepted node's streams.

    Attributes:
        lower: through the layers below the MSA layers.
        upper: through the MSA layers.
        heads: through the head, pass by pass.
        deferred: through the MSA layers and the head once more, for streams that are deferred.
    """

    lower: int
    upper: int
    heads: tuple[int, ...]
    deferred: int = 0


PLAIN_ROWS = StepRows(1, 1, (1,))
"""Of a step of plain decoding."""


def rows_of(plan: Plan) -> StepRows:
    """The rows of a step."""
    nodes, streams = len(plan.tree), plan.streams
    kept = min(plan.keep or nodes, nodes)
    early_exit = (len(set(plan.tree.parents[1:].tolist())),) if kept < nodes else ()
    if plan.place == "beside":
        with_streams = min(plan.beside or kept, kept)
        return StepRows(nodes, kept + with_streams * streams, (*early_exit, kept, streams))
    return StepRows(nodes, kept, (*early_exit, kept), streams)
