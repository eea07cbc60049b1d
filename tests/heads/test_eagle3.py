"""Draft heads from their files: converted, mounted, and refused with one sentence."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from command_line import generate, refusal, run
from draft_heads import AUX, HIDDEN, PLAIN, eagle3, write
from eagle3_in_torch import SIZES, TorchEagle3
from random_models import (
    PROMPT,
    VOCAB_SIZE,
    plain_tokens,
    request,
    speculative_model,
    tokens_of,
)
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.draft_head import STEPS
from specstream_mlx.generation.batch import decode
from specstream_mlx.heads import published_heads
from specstream_mlx.heads.read_head import read_head


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
    verifier = {"verifier": {"name_or_path": "/models/Other-8B"}}
    config = config | {"speculators_config": verifier}
    model.mount_head(write(tmp_path / "head", tensors, config))
    settings = DraftSettings(tree_width=1, tree_size=1)
    for length in (STEPS // 2, 2 * STEPS):
        assert not capsys.readouterr().err
        list(decode(model, request(PROMPT, settings, max_tokens=length)))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    name = f"eagle3 head {tmp_path / 'head'}, made for Other-8B,"
    assert said[0].startswith(f"The {name} foresaw none of 64 tokens: unless")


@pytest.mark.parametrize(
    ("spoil", "changes", "sentence"),
    [
        ({"d2t": lambda d2t: d2t + np.arange(len(d2t))}, {}, "does not name 60 different tokens"),
        ({"t2d": lambda t2d: np.roll(t2d, 1)}, {}, "t2d and d2t name different tokens"),
        ({"midlayer.mlp.norm.weight": lambda _: np.ones(8)}, {}, "not in model: midlayer.mlp.norm"),
        (
            {"t2d": lambda t2d: np.append(t2d, False)},
            {"vocab_size": 98},
            "a model of 98 tokens, wh",
        ),
        ({}, {"norm_before_fc": True}, "norm_before_fc is true and input_norm.weight is missing"),
        ({}, {AUX: [0, 1, 2, 3]}, "fc.weight reads 96 values"),
        ({}, {AUX: [0, 1, 5]}, "is 5, expected an integer of at"),
        ({}, {"speculators_model_type": "peagle"}, "is 'peagle', expected"),
        ({}, {"head_dim": "8"}, "head_dim is '8', expected an integer"),
        ({}, {"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({}, {"layer_types": ["sliding_attention"]}, "attends in a window, expected"),
    ],
)
def test_eagles_that_do_not_fit_are_refused(spoil, changes, sentence, tmp_path):
    model = speculative_model()
    tensors, _, config = eagle3(np.random.default_rng(0), model, drafted=60)
    tensors |= {name: change(tensors.get(name)) for name, change in spoil.items()}
    directory = write(tmp_path / "head", tensors, config | changes)
    with pytest.raises(UserError, match=sentence):
        read_head(directory, model.model, model.config)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A base whose head is published, in torch's files; returns it and what was downloaded."""
    base = tiny_llama_directory(tmp_path / "Tiny-1M-Instruct-4bit", bits=4)
    layer = SIZES | {"hidden_size": 64, "vocab_size": tiny_models.VOCAB_SIZE}
    snapshot, asked = tmp_path / "models--someone--tiny.eagle3" / "snapshots" / "1", []
    snapshot.mkdir(parents=True)
    tensors = TorchEagle3([2, 2, 1], 64, layer, drafted=60).tensors()
    torch.save(tensors, snapshot / "pytorch_model.bin")
    (snapshot / "config.json").write_text(json.dumps(PLAIN | layer))
    sizes = "llama", 64, 4, layer["vocab_size"]
    row = "org/Tiny-1M-Instruct", sizes, "someone/tiny.eagle3"
    head = published_heads.PublishedHead(*row, "MIT", 2_040_000_000)
    monkeypatch.setattr(published_heads, "PUBLISHED_HEADS", [head])

    def download(repository, **_):
        asked.append(repository)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return base, asked


def test_a_published_head_is_named_and_found_where_it_is_asked_for(hub, tmp_path, monkeypatch):
    base, asked = hub
    plain = generate(base)
    assert (
        "or let --draft-head auto get the published someone/tiny.eagle3 (2.0 GB, MIT)"
        in (plain.stderr.splitlines()[0])
    )
    assert not asked
    for flags in ("--draft-head", "auto"), ("--draft-head", "someone/tiny.eagle3", "-q"):
        drafted = generate(base, *flags, "--tree-size", 4)
        assert drafted.stdout == plain.stdout, drafted.stderr
        assert ("Draft head: someone/tiny.eagle3 (2.0 GB, MIT)\n" in drafted.stderr) == (
            "auto" in flags
        )
    assert set(asked) == {"someone/tiny.eagle3"}
    other = base.rename(tmp_path / "Tiny-1M-Instruct-tuned")  # as large, and maybe another model
    assert "published" not in generate(other).stderr
    sentence = refusal(generate(other, "--draft-head", "auto"))
    assert "if it is org/Tiny-1M-Instruct, whose sizes it has: someone/tiny.eagle3" in sentence
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "in torch's files" in refusal(generate(other, "--draft-head", "someone/tiny.eagle3"))


QWEN3 = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}


@pytest.mark.parametrize(
    ("name", "is_base"),
    [
        ("Qwen3-8B", True),
        ("models--mlx-community--Qwen3-8B-4bit-DWQ-053125/snapshots/ab12", True),
        ("qwen3-8b-Q4_K_M", True),
        ("Qwen3-8B-Base", False),
        ("Qwen3-8B-2507", False),
        ("DeepSeek-R1-0528-Qwen3-8B-4bit", False),
    ],
)
def test_a_base_is_known_by_its_sizes_and_its_name(name, is_base):
    found = published_heads.head_for(Path(name), QWEN3)
    assert (found is not None) == is_base
    assert published_heads.head_for(Path(name), QWEN3 | {"hidden_size": 2560}) is None


def test_a_head_says_its_size_and_licence_or_that_none_was_found():
    said = {head.base: str(head) for head in published_heads.PUBLISHED_HEADS}
    assert said["Qwen/Qwen3-8B"] == "RedHatAI/Qwen3-8B-speculator.eagle3 (2.0 GB, Apache-2.0)"
    unknown = "AngelSlim/Qwen3-4B_eagle3 (437 MB, licence not found: see its page)"
    assert said["Qwen/Qwen3-4B"] == unknown
