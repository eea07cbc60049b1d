"""The ways to draft among which the tuner chooses, and what each comes to on recorded texts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..config import StreamConfig
from ..drafting.settings import DraftSettings
from .adaptive import Arm, Kind
from .cost import STREAM_NODES, StepCosts, place_of
from .replay import Recording, Replayed, replay

WIDTH = 6
"""Candidates of each stream that are recorded, and ranks in the acceptance table."""

_TREE_WIDTH = 4
_SIZES = (2, 3, 4, 6, 8, 11, 15, 23)
_LOOKUP_SIZES = (2, 4, 6, 10, 15)
_HYBRID_SIZES = (4, 8, 11, 15)
_THRESHOLDS = (None, 0.05, 0.1, 0.2, 0.35)
_CHAIN_THRESHOLDS = (None, 0.1, 0.2, 0.35, 0.5)
_LOOKUP_THRESHOLDS = (0.1, 0.2, 0.35)


def drafts(streams: StreamConfig | None, vocab_size: int) -> Iterator[tuple[Kind, DraftSettings]]:
    """Everything that is tried but plain decoding: chains, best-first trees, lookup, and both.

    What is best among them is expected tokens over expected seconds, as in Sequoia (arXiv
    2402.12374), but trees grow step by step by the streams' own probabilities, as in EAGLE-2
    (arXiv 2406.16858): a threshold ends them where a node is not worth its time.
    """
    for size in _LOOKUP_SIZES:
        for threshold in _LOOKUP_THRESHOLDS:
            yield (
                "lookup",
                DraftSettings(
                    num_streams=0,
                    lookup=True,
                    lookup_size=size,
                    tree_size=size,
                    draft_threshold=threshold,
                ),
            )
    if streams is None:
        return
    width = min(_TREE_WIDTH, vocab_size)
    for threshold in _CHAIN_THRESHOLDS:
        for depth in range(1, streams.num_streams + 1):
            yield (
                "streams",
                DraftSettings(
                    num_streams=depth, tree_width=1, tree_size=depth, draft_threshold=threshold
                ),
            )
    for threshold in _THRESHOLDS:
        for size in _SIZES:
            yield (
                "streams",
                DraftSettings(tree_width=width, tree_size=size, draft_threshold=threshold),
            )
    for threshold in _LOOKUP_THRESHOLDS:
        for size in _HYBRID_SIZES:
            yield (
                "hybrid",
                DraftSettings(
                    tree_width=width, tree_size=size, draft_threshold=threshold, lookup=True
                ),
            )


def plain_arm(costs: StepCosts) -> Arm:
    """One token a step."""
    settings = DraftSettings(speculation=False)
    return Arm("plain", settings, 1.0, 1.0, costs.plain, 0.0, (costs.plain,))


def arms(
    recordings: Sequence[Recording],
    costs: StepCosts,
    streams: StreamConfig | None,
    vocab_size: int,
) -> list[Arm]:
    """Plain decoding and all drafts, the most tokens per second first.

    Args:
        recordings: texts; without a second token in one of them nothing is drafted.
        costs: of the steps.
        streams: the mounted ones, or ``None``.
        vocab_size: no tree is wider.
    """
    found = [plain_arm(costs)]
    if all(len(text.tokens) < 2 for text in recordings):
        return found
    for kind, settings in drafts(streams, vocab_size):
        steps: Replayed | None = None
        for moved in placed(settings, streams):
            place = place_of(moved, streams)
            most = moved.most_nodes(streams.num_streams if streams else 0) + 1
            if most > costs.most_nodes(place):
                continue  # too many nodes to be of use here
            if steps is None or moved.stream_nodes is not None:
                steps = replay(recordings, moved)
            by_nodes = tuple(costs.seconds(n, place) for n in range(1, most + 1))
            found.append(_arm(kind, moved, steps, by_nodes))
    return sorted(found, key=lambda arm: -arm.rate)


def placed(settings: DraftSettings, streams: StreamConfig | None) -> Iterator[DraftSettings]:
    """The same drafts with the streams wherever they may run."""
    yield settings
    if settings.placement(streams) == "deferred":
        yield replace(settings, deferred=False)
        for count in STREAM_NODES:
            yield replace(settings, stream_nodes=count)


def _arm(kind: Kind, settings: DraftSettings, steps: Replayed, by_nodes: tuple[float, ...]) -> Arm:
    count = len(steps.nodes)
    seconds = sum(by_nodes[nodes - 1] for nodes in steps.nodes) / count
    host = steps.host_seconds
    return Arm(
        kind,
        settings,
        steps.call_reduction,
        sum(steps.nodes) / count,
        seconds + host,
        host,
        by_nodes,
    )
