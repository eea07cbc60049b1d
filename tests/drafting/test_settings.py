"""``DraftSettings``: what cannot be, what does not fit a model, and what people are told."""

from dataclasses import replace

import pytest

from specstream_mlx import DraftSettings, UserError
from specstream_mlx.drafting.fixed import describe
from specstream_mlx.drafting.settings import LIKELY_DRAFTS, draft_settings
from specstream_mlx.stream_config import StreamConfig

LOSSLESS = StreamConfig(
    mode="lossless", hidden_size=8, num_hidden_layers=4, num_msa_layers=2, num_streams=4
)


@pytest.mark.parametrize(
    "fields", [{"max_nodes": 2}, {"prune_threshold": 0.5}, {"stream_nodes": 2}]
)
@pytest.mark.parametrize(
    ("streams", "more"),
    [(None, {"lookup": True}), (LOSSLESS, {"lookup": True, "num_streams": 0})],
)
def test_what_needs_streams_without_any(fields, streams, more):
    ((name, value),) = fields.items()
    with pytest.raises(UserError, match=f"{name} is {value}, but no streams run"):
        DraftSettings(**fields, **more).check(97, streams)


@pytest.mark.parametrize("field", [{"max_nodes": 5}, {"prune_threshold": 0.1}])
def test_streams_beside_some_nodes_need_all_nodes_and_lossless_mode(field):
    with pytest.raises(UserError, match=f"stream_nodes and {next(iter(field))} were both given"):
        DraftSettings(stream_nodes=2, **field)
    with pytest.raises(UserError, match="stream_nodes needs an adapter in lossless mode"):
        DraftSettings(stream_nodes=2).check(97, replace(LOSSLESS, mode="shared"))


def test_unlikely_drafts_are_left_out_unless_a_shape_is_given():
    assert draft_settings() == LIKELY_DRAFTS
    assert LIKELY_DRAFTS.draft_threshold is not None
    for more in ({"num_streams": 2}, {"num_streams": 2, "lookup": True}):
        assert draft_settings(**more) == replace(LIKELY_DRAFTS, **more)
    for shape in ({"tree_width": 2}, {"tree_size": 5}, {"tree_size": 5, "draft_threshold": 0.4}):
        assert draft_settings(**shape) == DraftSettings(**shape)


def test_pruning_needs_a_pruner():
    streams = StreamConfig(**LOSSLESS.to_dict() | {"pruner_rank": 0})
    with pytest.raises(UserError, match="need a pruner, the adapter has none"):
        DraftSettings(max_nodes=3).check(97, streams)


@pytest.mark.parametrize(
    ("settings", "streams", "words"),
    [
        (DraftSettings(lookup=True), True, "best-first, 8 nodes, width 4, with lookup of up"),
        (DraftSettings(lookup=True), False, "best-first, 8 nodes, lookup of up to 4-grams"),
        (
            DraftSettings(lookup=True, num_streams=0, tree_size=None),
            True,
            "best-first, 10 nodes",
        ),
        (DraftSettings(), False, "no drafts"),
        (DraftSettings(lookup=True, speculation=False), True, "no drafts"),
        (DraftSettings(stream_nodes=2), True, "best-first, 8 nodes, width 4, streams beside 2"),
        (DraftSettings(tree_size=None, tree_width=2, num_streams=3), True, "full 2-ary, depth 3"),
    ],
)
def test_a_few_words_for_people(settings, streams, words):
    assert describe(settings, streams).startswith(words)
