"""Draft heads from their files: converted, mounted, and refused with one sentence."""

import json

import numpy as np
import pytest
import torch
from command_line import refusal, run
from draft_heads import HIDDEN, eagle3, write
from random_models import PROMPT, VOCAB_SIZE, plain_tokens, request, speculative_model, tokens_of
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.drafting.eagle3 import read_head
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.draft_head import STEPS
from specstream_mlx.scheduler import decode


def test_torchs_files_are_converted_and_generate_mounts_them(tmp_path):
    """Without ids it reads the authors' three boundaries; no pickle may run anything."""
    source, target = tmp_path / "torch", tmp_path / "mlx"
    tensors, _, config = eagle3(np.random.default_rng(0), speculative_model(), drafted=60)
    source.mkdir()
    torch.save({n: torch.tensor(one) for n, one in tensors.items()}, source / "pytorch_model.bin")
    (source / "config.json").write_text(json.dumps(config))
    base = tiny_llama_directory(tmp_path / "base", hidden_size=HIDDEN, vocab_size=VOCAB_SIZE)
    arguments = "convert", "--model", base, "--draft-head", source, "--mlx-path"
    result = run(*arguments, target)
    assert "eagle3: " in result.stderr and "parameters, to depth 6" in result.stderr
    assert "it reads the hidden states that go into layers 2, 2, 1" in result.stderr
    model, _ = load(base, draft_head=target)
    assert model.head.tokens.tolist() == (np.arange(60) + tensors["d2t"]).tolist()
    drafted = tokens_of(model, PROMPT, 20, tree_size=4)
    model.mount_head(None)
    assert drafted == plain_tokens(model.model, PROMPT, 20)[: len(drafted)]
    (source / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    assert "of which nothing was run" in refusal(run(*arguments, tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_head_that_is_never_right_is_reported_once(tmp_path, capsys):
    """The head always guesses one token that the text does not have."""
    model = speculative_model(seed=1)
    model.streams = None
    text = plain_tokens(model.model, PROMPT, 3 * STEPS)
    [wrong, *_] = set(range(VOCAB_SIZE)) - set(text)
    tensors, _, config = eagle3(np.random.default_rng(0), model, drafted=1)
    tensors |= {"d2t": np.array([wrong]), "t2d": np.arange(VOCAB_SIZE) == wrong}
    model.mount_head(write(tmp_path / "head", tensors, config))
    settings = DraftSettings(tree_width=1, tree_size=1)
    for length in (STEPS // 2, 2 * STEPS):
        assert not capsys.readouterr().err
        list(decode(model, request(PROMPT, settings, max_tokens=length)))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    name = f"eagle3 head {tmp_path / 'head'}"
    assert said[0].startswith(f"The {name} foresaw none of 64 tokens: unless")


AUX = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("spoil", "changes", "sentence"),
    [
        ({"d2t": lambda d2t: d2t + np.arange(len(d2t))}, {}, "does not name 60 different tokens"),
        ({"t2d": lambda t2d: np.roll(t2d, 1)}, {}, "t2d and d2t name different tokens"),
        ({"midlayer.self_attn.q_norm.weight": lambda _: np.ones(8)}, {}, "not in model: midlayer"),
        ({}, {AUX: [0, 1, 2, 3]}, "fc.weight reads 96 values"),
        ({}, {AUX: [0, 1, 5]}, "is 5, expected an integer of at"),
        ({}, {"speculators_model_type": "peagle"}, "is 'peagle', expected"),
        ({}, {"head_dim": "8"}, "head_dim is '8', expected an integer"),
    ],
)
def test_eagles_that_do_not_fit_are_refused(spoil, changes, sentence, tmp_path):
    model = speculative_model()
    tensors, _, config = eagle3(np.random.default_rng(0), model, drafted=60)
    tensors |= {name: change(tensors.get(name)) for name, change in spoil.items()}
    directory = write(tmp_path / "head", tensors, config | changes)
    with pytest.raises(UserError, match=sentence):
        read_head(directory, model.model, model.config)
