"""Datastores in REST's format, and what is drafted from them."""

import random

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


def test_the_file_is_the_published_ones(tmp_path):
    """Lengths in bytes, two bytes a token, four a place, all little-endian, chunk behind chunk."""
    write_datastore(tmp_path / "store", np.array([258, 1, 258, 0, 7]), 49152, chunk=3)
    expected = "06000000" + "020101000201" + "0c000000" + "010000000200000000000000"
    expected += "04000000" + "00000700" + "08000000" + "0000000001000000"
    assert (tmp_path / "store").read_bytes().hex() == expected


@pytest.mark.parametrize("vocab_size", [49152, 151936])
@pytest.mark.parametrize("chunk", [1000, 70])
def test_what_followed_is_found_in_every_chunk(vocab_size, chunk, tmp_path):
    tokens = some_tokens(1) + vocab_size - 5
    write_datastore(tmp_path / "store", tokens, vocab_size, chunk)
    store, listed = Datastore(tmp_path / "store"), tokens.tolist()
    for seed in range(30):
        query = (some_tokens(seed, 1 + seed % 4) + vocab_size - 5).tolist()
        expected = []
        for start in range(0, 300, chunk):
            part = listed[start : start + chunk]
            for place in range(len(part) - len(query) + 1):
                if part[place : place + len(query)] == query:
                    behind = part[place + len(query) :][:4]
                    expected.append([*behind, *[-1] * (4 - len(behind))])
        found = store.following(query, 10**6, 4).tolist()
        assert sorted(found) == sorted(expected)
        assert len(store.following(query, 3, 4)) == min(3, len(expected))


@pytest.mark.parametrize("damage", ["", "00", "ff" * 9, "short", "places", "odd"])
def test_other_files_are_refused(damage, tmp_path):
    path = tmp_path / "store"
    write_datastore(path, some_tokens(0), 100)
    whole = path.read_bytes()
    data = {
        "short": whole[:-1],
        "places": whole[:-2] + b"\xff\x00",
        "odd": whole[:3] + b"\x01" + whole[4:],
    }
    path.write_bytes(data[damage] if damage in data else bytes.fromhex(damage))
    with pytest.raises(UserError, match=r"no datastore|cannot be read"):
        Datastore(path)
    with pytest.raises(UserError, match="cannot be read"):
        Datastore(tmp_path / "none")


def test_the_longest_end_says_what_follows_by_how_often_it_did(tmp_path):
    sentences = [9, 1, 2, 3, 4] * 3 + [8, 1, 2, 5, 6] * 2
    write_datastore(tmp_path / "store", np.array(sentences), 100)
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


def test_a_long_end_is_found_by_halving(tmp_path):
    rng = random.Random(0)
    tokens = [rng.randrange(50) for _ in range(400)]
    write_datastore(tmp_path / "store", np.array(tokens), 100)
    for span in range(1, 20):
        drafter = Retrieval(Material([99, *tokens[100 : 100 + span]]), tmp_path / "store", 16, 2)
        assert drafter._span == (min(span, 16) if span > 1 else 0)
