"""Draft heads of other methods: what is trained is what MLX runs, and it learns."""

from itertools import islice

import pytest
import torch
from draft_heads import assert_guesses
from random_models import PROMPT, plain_tokens, request, tokens_of
from specstream_mlx.convert.pytorch.load import load_base
from tiny_models import VOCAB_SIZE
from tiny_training import rows_of

from benchmarks.rivals import train_heads
from benchmarks.rivals.heads import mounted
from benchmarks.rivals.train_heads import FrozenBase, HeadSettings, write_head
from specstream_mlx import load
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.generation.batch import decode
from specstream_mlx.heads.eagle3 import DEPTH

FORMS = {
    "medusa": {"kind": "medusa"},
    "medusa, own heads": {"kind": "medusa", "own_lm_heads": True},
    "hydra": {"kind": "hydra"},
    "eagle": {"kind": "eagle"},
    "eagle3": {"kind": "eagle3"},
}


@pytest.fixture
def settings(tied, data, tmp_path):
    small = {"batch_size": 8, "iters": 12, "log_every": 1, "bf16": False, "num_heads": 3}
    fixed = {"model": tied, "data": data, "output": tmp_path / "out", **small}
    return lambda **values: HeadSettings(**{**fixed, **values})


@pytest.fixture(scope="module")
def base(tied):
    return load_base(tied)


def random_head(base, chosen):
    """A head with random weights, and what it drafts."""
    torch.manual_seed(1)
    frozen = FrozenBase(base)
    network = train_heads.build_head(chosen, frozen)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
    return network.eval(), frozen


@torch.no_grad()
def trained_logits(network, frozen, text, path):
    """(n,) what the trainer's network says after a text and drafts."""
    tokens = torch.tensor([[*text, *path]])
    read, _ = frozen.hidden(tokens, getattr(network, "boundaries", ()))
    features = network(read, frozen.backbone.embedding(tokens), torch.tensor([[len(text) - 2]]))
    own = [(head.weight, head.bias) for head in network.lm_heads] or [frozen.shared] * DEPTH
    return torch.nn.functional.linear(features[0, 0, len(path)], *own[len(path)]).numpy()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_trained_is_what_mlx_runs(form, base, settings, tied_mlx, tmp_path):
    network, frozen = random_head(base, settings(**FORMS[form], num_heads=DEPTH))
    write_head(network, "base", tmp_path / "head")
    model, _ = load(tied_mlx)
    model.mount_head(mounted(tmp_path / "head", model))
    assert model.head.config.parameters == sum(p.numel() for p in network.parameters())
    text, every = [*PROMPT], range(VOCAB_SIZE)
    asked = request(PROMPT, DraftSettings(tree_width=2, tree_size=6))
    for step in islice(decode(model, asked), 4):
        text += step.tokens
        assert_guesses(
            lambda *place: (trained_logits(network, frozen, *place), every), text, step, model
        )


@pytest.mark.parametrize("form", FORMS)
def test_it_learns_and_the_text_stays(form, settings, data, tied_mlx):
    """From the text: what the random base would write is another."""
    learns = {"iters": 40, "learning_rate": 1e-2, "teacher": "text"}
    if FORMS[form]["kind"] == "eagle":
        learns["token_loss"] = 5.0
    chosen = settings(**FORMS[form], **learns, valid_data=data)
    directory = train_heads.train_head(chosen)
    lines = rows_of(chosen.output / "log.jsonl")
    assert lines[39]["loss"] < 0.8 * lines[0]["loss"]
    assert len(lines[-1]["held_out"]["depths"]) == chosen.num_heads
    assert lines[-1]["held_out"]["chain"] > 1.3
    model, _ = load(tied_mlx)
    prompt = [5, 9, 3, 7]
    expected = plain_tokens(model.model, prompt, 12)
    model.mount_head(mounted(directory, model))
    assert tokens_of(model, prompt, 12, tree_size=4)[:12] == expected
