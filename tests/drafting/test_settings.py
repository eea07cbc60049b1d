"""``DraftSettings``: what cannot be, what does not fit a model, and what people are told."""

from dataclasses import replace

import pytest

from specstream_mlx import DraftSettings, UserError
from specstream_mlx.drafting.settings import LIKELY_DRAFTS, describe, draft_settings
from specstream_mlx.stream_config import StreamConfig

LOSSLESS = StreamConfig(
    mode="lossless", hidden_size=8, num_hidden_layers=4, num_msa_layers=2, num_streams=4
)


SHARED, NO_PRUNER = replace(LOSSLESS, mode="shared"), replace(LOSSLESS, pruner_rank=0)


@pytest.mark.parametrize(
    ("fields", "streams", "sentence"),
    [
        ({"stream_nodes": 2, "max_nodes": 5}, LOSSLESS, "stream_nodes and max_nodes were both"),
        ({"stream_nodes": 2, "prune_threshold": 0.1}, LOSSLESS, "and prune_threshold were both"),
        ({"stream_nodes": 2}, SHARED, "stream_nodes needs an adapter in lossless mode"),
        ({"max_nodes": 3}, NO_PRUNER, "need a pruner, the adapter has none"),
        ({"stream_nodes": 2, "num_streams": 0, "lookup": True}, LOSSLESS, "but no streams run"),
    ],
)
def test_settings_that_do_not_fit(fields, streams, sentence):
    with pytest.raises(UserError, match=sentence):
        DraftSettings(**fields).check(97, streams)


def test_unlikely_drafts_are_left_out_unless_a_shape_is_given():
    assert draft_settings() == LIKELY_DRAFTS
    assert LIKELY_DRAFTS.draft_threshold is not None
    for more in ({"num_streams": 2}, {"num_streams": 2, "lookup": True}):
        assert draft_settings(**more) == replace(LIKELY_DRAFTS, **more)
    for shape in ({"tree_width": 2}, {"tree_size": 5}, {"tree_size": 5, "draft_threshold": 0.4}):
        assert draft_settings(**shape) == DraftSettings(**shape)


@pytest.mark.parametrize(
    ("settings", "streams", "words"),
    [
        (DraftSettings(lookup=True), True, "best-first, 8 nodes, width 4, with lookup of up"),
        (DraftSettings(lookup=True, num_streams=0, tree_size=None), True, "best-first, 10 nodes"),
        (DraftSettings(lookup=True, speculation=False), True, "no drafts"),
        (DraftSettings(stream_nodes=2), True, "best-first, 8 nodes, width 4, streams beside 2"),
        (DraftSettings(tree_size=None, tree_width=2, num_streams=3), True, "full 2-ary, depth 3"),
    ],
)
def test_a_few_words_for_people(settings, streams, words):
    assert describe(settings, streams).startswith(words)
