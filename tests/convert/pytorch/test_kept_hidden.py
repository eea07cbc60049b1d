"""Hidden states are computed once for each text, and kept in memory or in files."""

import pytest
import torch
from specstream_mlx.convert.pytorch.kept_hidden import KeptHidden
from specstream_mlx.convert.pytorch.training_data import collate

from specstream_mlx.train.items import Item

TEXTS = [Item([3, 1, 4, 1], 1), Item([2, 7], 1), Item([1, 8, 2], 1)]


@pytest.fixture
def computed():
    """The texts that were computed, one after the other."""
    return []


@pytest.fixture
def compute(computed):
    def states(tokens):
        computed.extend(tokens.tolist())
        return tokens[..., None] * torch.tensor([1.0, 10.0])

    return states


def check(kept, items):
    """The states of a batch, 0 behind each text's end."""
    batch = collate(items, torch.device("cpu"))
    found = kept.of(items, batch)
    assert found.shape == (*batch.tokens.shape, 2)
    for states, item in zip(found, items, strict=True):
        own = torch.tensor(item.tokens)[:, None] * torch.tensor([1.0, 10.0])
        assert torch.equal(states[: len(own)], own)
        assert not states[len(own) :].any()


@pytest.mark.parametrize("in_files", [False, True])
def test_each_text_is_computed_once(in_files, compute, computed, tmp_path):
    directory = tmp_path / "states" if in_files else None
    kept = KeptHidden(compute, directory=directory)
    check(kept, TEXTS[:2])
    assert len(computed) == 2
    check(kept, [TEXTS[2], TEXTS[0]])
    check(kept, TEXTS)
    assert len(computed) == 3


def test_files_serve_other_runs_of_the_model_and_nothing_stays_in_memory(
    compute, computed, tmp_path
):
    kept = KeptHidden(compute, directory=tmp_path, model="one")
    check(kept, TEXTS)
    check(KeptHidden(compute, directory=tmp_path, model="one"), TEXTS)
    assert len(computed) == 3
    check(KeptHidden(compute, directory=tmp_path, model="other"), TEXTS)
    assert len(computed) == 6
    for path in tmp_path.iterdir():
        path.unlink()
    check(kept, TEXTS)
    assert len(computed) == 9
