"""Datastores, and what is drafted from them."""

import numpy as np
import pytest

from benchmarks.rivals.rest import Datastore, Retrieval, suffix_array, write_datastore
from specstream_mlx import UserError
from specstream_mlx.drafting.proposer import FREE, Material
from specstream_mlx.engine.plan import NOTHING_VERIFIED


def some_tokens(seed, count=300, vocab_size=5):
    return np.random.default_rng(seed).integers(0, vocab_size, count)


@pytest.mark.parametrize("tokens", [[7], [3, 3, 3, 3], *map(some_tokens, range(4))])
def test_suffixes_are_sorted(tokens):
    listed = list(map(int, tokens))
    expected = sorted(range(len(listed)), key=lambda start: listed[start:])
    assert suffix_array(np.array(tokens)).tolist() == expected


def test_what_followed_is_found(tmp_path):
    tokens = some_tokens(1) + 151_000
    write_datastore(tmp_path / "store", tokens)
    store, listed = Datastore(tmp_path / "store"), tokens.tolist()
    assert store.most == max(listed)
    for seed in range(30):
        query = (some_tokens(seed, 1 + seed % 4) + 151_000).tolist()
        after = [
            listed[start + len(query) :][:4]
            for start in range(300 - len(query) + 1)
            if listed[start : start + len(query)] == query
        ]
        expected = sorted([*part, *[-1] * (4 - len(part))] for part in after)
        assert sorted(store.following(query, 10**6, 4).tolist()) == expected
        assert len(store.following(query, 3, 4)) == min(3, len(expected))


@pytest.mark.parametrize("damage", ["empty", "text", "short", "places", "floats", "one array"])
def test_other_files_are_refused(damage, tmp_path):
    path = tmp_path / "store"
    write_datastore(path, some_tokens(0))
    whole = path.read_bytes()
    cut = {"empty": b"", "text": b"00", "short": whole[:-1], "places": whole[:-2] + b"\xff\x00"}
    if damage in cut:
        path.write_bytes(cut[damage])
    else:
        with path.open("wb") as file:
            np.save(file, np.zeros((2, 3)) if damage == "floats" else np.int32([1, 2]))
    with pytest.raises(UserError, match=r"no datastore|cannot be read"):
        Datastore(path)
    with pytest.raises(UserError, match="cannot be read"):
        Datastore(tmp_path / "none")


def test_the_longest_end_says_what_follows_by_how_often_it_did(tmp_path):
    sentences = [9, 1, 2, 3, 4] * 3 + [8, 1, 2, 5, 6] * 2
    write_datastore(tmp_path / "store", np.array(sentences))
    drafter = Retrieval(Material([50, 1, 2]), tmp_path / "store")
    drafter.begin(NOTHING_VERIFIED, FREE)
    assert [token for token, _ in drafter.children(())] == [3, 5]
    assert drafter.children((3,))[0][0] == 4
    assert drafter.children((7,)) == []
    before = drafter.children(())[0][1]
    for _ in range(8):
        drafter.accept([3, 4, 8, 1, 2])
        drafter.begin(NOTHING_VERIFIED, FREE)
    assert [token for token, _ in drafter.children(())] == [5], "a longer end occurs"
    drafter.accept([9, 1, 2])
    drafter.begin(NOTHING_VERIFIED, FREE)
    assert [token for token, _ in drafter.children(())] == [3]
    drafter.accept([70])
    drafter.begin(NOTHING_VERIFIED, FREE)
    assert drafter.children(()) == []
    assert before < 0
