"""Draft heads from their files: converted, mounted, and refused with one sentence."""

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
import torch
from command_line import refusal, run
from draft_heads import HIDDEN, eagle3, hydra, medusa, write
from random_models import PROMPT, VOCAB_SIZE, plain_tokens, request, speculative_model
from tiny_models import VOCAB_SIZE as TINY_VOCAB
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.guesses import StreamGuesses
from specstream_mlx.heads.files import read_head
from specstream_mlx.heads.mismatch import LEAST, STEPS, HeadWatch
from specstream_mlx.loop import decode


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("base") / "base", hidden_size=HIDDEN)


@pytest.fixture
def tensors():
    """Medusa's heads for ``base``, which share its LM head."""
    return medusa(np.random.default_rng(0), None, own=False)[0]


def saved_by_torch(directory, tensors):
    directory.mkdir()
    values = {name: torch.tensor(tensor).bfloat16() for name, tensor in tensors.items()}
    torch.save(values, directory / "medusa_lm_head.pt")
    (directory / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    return directory


def test_torchs_files_are_converted_and_generate_mounts_them(base, tensors, tmp_path):
    source, target = saved_by_torch(tmp_path / "torch", tensors), tmp_path / "mlx"
    result = run("convert", "--model", base, "--draft-head", source, "--mlx-path", target)
    assert "medusa: 3,168 parameters, to depth 3" in result.stderr
    converted = mx.load(str(target / "model.safetensors"))
    assert {name: array.dtype for name, array in converted.items()} == dict.fromkeys(
        tensors, mx.bfloat16
    )
    flags = "generate", "--model", base, "-p", "the meeting", "-m", 30
    plain = run(*flags, "--no-speculation", "--quiet").stdout
    drafted = run(*flags, "--draft-head", target, "--verbose")
    assert drafted.stdout == plain
    assert "the medusa head and lookup" in drafted.stderr


def test_a_whole_model_and_its_head_are_taken_apart(base, tensors, tmp_path):
    """Medusa-2 has trained the model too: the head's base is this one."""
    head_tensors = {f"medusa_head.{name}": tensor for name, tensor in tensors.items()}
    own = mx.load(str(base / "model.safetensors"))
    source = shutil.copytree(base, tmp_path / "whole")
    mx.save_safetensors(
        str(source / "model.safetensors"), own | {n: mx.array(a) for n, a in head_tensors.items()}
    )
    line = refusal(run("generate", "--model", base, "-p", "a", "--draft-head", source))
    assert "is a whole model with a head in it" in line
    model, head = tmp_path / "model", tmp_path / "head"
    run("convert", "--model", source, "--mlx-path", model)
    run("convert", "--model", source, "--draft-head", source, "--mlx-path", head)
    assert mx.load(str(head / "model.safetensors")).keys() == head_tensors.keys()
    found = mx.load(str(model / "model.safetensors"))
    assert found.keys() == own.keys()
    assert all(mx.array_equal(found[name], own[name]) for name in own)
    for target in (model, source):
        loaded, _ = load(target, draft_head=head)
        assert loaded.head.config.num_streams == 3
        assert type(loaded.model) is type(load(base)[0].model)


def without(name):
    return lambda tensors: tensors.pop(name)


REFUSED = {
    "another width": (
        lambda t: t.update({n: a[..., :16] for n, a in t.items()}),
        "0.0.linear.weight has shape (32, 16), expected (32, 32)",
    ),
    "a head without its layer": (without("1.0.linear.weight"), "has the tensor 1.0.linear.bias"),
    "a head of its own for one": (
        lambda t: t.update({"0.1.weight": np.zeros((TINY_VOCAB, HIDDEN), np.float32)}),
        "has 0.1.weight and no 1.1.weight, expected both or neither",
    ),
    "another vocabulary": (
        lambda t: t.update({f"{i}.1.weight": np.zeros((9, HIDDEN), np.float32) for i in range(3)}),
        f"0.1.weight has shape (9, 32), expected ({TINY_VOCAB}, 32)",
    ),
    "more than is known": (
        lambda t: t.update({"gate": np.zeros(3, np.float32)}),
        "has the tensor gate, expected none of that name in a medusa head",
    ),
    "something else": (
        lambda t: [t.clear(), t.update({"gate": np.zeros(3, np.float32)})],
        "has 1 tensors, such as gate, expected those of",
    ),
    "not finite": (lambda t: t["0.0.linear.bias"].fill(np.nan), "holds NaN or infinity"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case, base, tensors, tmp_path):
    spoil, sentence = REFUSED[case]
    spoil(tensors)
    model, _ = load(base)
    with pytest.raises(UserError) as error:
        model.mount_head(write(tmp_path / "head", tensors))
    assert sentence in str(error.value)
    assert model.head is None


def test_other_refusals(base, tensors, tmp_path):
    source = saved_by_torch(tmp_path / "torch", tensors)
    for head, sentence in (
        (source, "has medusa_lm_head.pt and no safetensors"),
        (tmp_path / "none", "is not a directory"),
    ):
        line = refusal(run("generate", "--model", base, "-p", "a", "--draft-head", head))
        assert sentence in line
    (source / "medusa_lm_head.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    arguments = "convert", "--model", base, "--draft-head", source, "--mlx-path", tmp_path / "mlx"
    assert "of which nothing was run" in refusal(run(*arguments))
    assert not (tmp_path / "mlx").exists()


def test_a_head_that_is_never_right_is_reported_once(tmp_path, capsys):
    """The head always guesses one token that the text does not have."""
    model = speculative_model(seed=1)
    model.streams = None
    text = plain_tokens(model.model, PROMPT, 3 * STEPS)
    [wrong, *_] = set(range(VOCAB_SIZE)) - set(text)
    tensors = medusa(np.random.default_rng(0), None, heads=1)[0]
    for name in tensors:
        tensors[name] = np.zeros_like(tensors[name])
    tensors["0.0.linear.bias"][:] = 50.0  # so that no hidden state matters
    tensors["0.1.weight"][wrong] = 1.0
    model.mount_head(write(tmp_path / "head", tensors))
    settings = DraftSettings(tree_width=1, tree_size=1)
    for length in (STEPS // 2, 2 * STEPS):
        assert not capsys.readouterr().err
        list(decode(model, request(PROMPT, settings, max_tokens=length)))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    name = f"medusa head {tmp_path / 'head'}"
    assert said[0].startswith(f"The {name} foresaw none of 64 tokens: unless")


@pytest.mark.parametrize(("right", "told"), [(0, 1), (LEAST - 1, 1), (LEAST, 0), (STEPS, 0)])
def test_a_head_that_is_right_by_chance_is_reported_too(right, told):
    """Its second guess counts for nothing: among several, one is soon right by chance."""
    said = []
    watch = HeadWatch("head", said.append)
    guesses = StreamGuesses(np.array([[4, 5]]), np.array([[-2.0, -0.1]]))
    for step in range(STEPS):
        assert not said
        watch.judge(guesses, [5 if step < right else 4])
    assert len(said) == told
    if told:
        assert f"foresaw {right or 'none'} of 64 tokens" in said[0]
    for _ in range(2 * STEPS):
        watch.judge(guesses, [4])
    assert len(said) == told


HYDRA_REFUSED = {
    "another family": ({"model_type": "qwen2"}, {}, {}, "the model's model_type is 'qwen2'"),
    "heads that see no token": ({}, {"grounded_heads": False}, {}, "grounded_heads is False"),
    "one of EAGLE's form": ({}, {"hydra_head_arch": "eagle-attn"}, {}, "is 'eagle-attn', expected"),
    "a layer of other sizes": ({"intermediate_size": 40}, {}, {}, "has shape (48, 32), expected"),
    "a missing head": ({}, {}, {"hydra_mlp.1": None}, "has 2 Hydra heads and none numbered 1"),
    "a missing LM head": ({}, {}, {"hydra_lm_head.2": None}, "2 LM heads for 3 Hydra heads"),
}


@pytest.mark.parametrize("case", HYDRA_REFUSED)
def test_hydras_that_do_not_fit_are_refused(case, tmp_path):
    changes, values, lacking, sentence = HYDRA_REFUSED[case]
    model = speculative_model()
    tensors, _, further = hydra(np.random.default_rng(0), model, prefix=True)
    tensors = {name: a for name, a in tensors.items() if not name.startswith(tuple(lacking))}
    directory = write(tmp_path / "head", tensors, further["config"] | values)
    with pytest.raises(UserError) as error:
        read_head(directory, model.model, model.config | changes)
    assert sentence in str(error.value)


def replaced(name, spoil):
    return lambda tensors: tensors.update({name: spoil(tensors[name])})


AUX = "eagle_aux_hidden_state_layer_ids"
EAGLE_REFUSED = {
    "ids in place of distances": (
        replaced("d2t", lambda d2t: d2t + np.arange(len(d2t))),
        {},
        "d2t does not name 60 different tokens, expected some of 0 to 96",
    ),
    "two maps": (replaced("t2d", lambda t2d: np.roll(t2d, 1)), {}, "t2d and d2t name different to"),
    "more than is read": (lambda _: None, {AUX: [0, 1, 2, 3]}, "fc.weight reads 96 values"),
    "a layer that is not": (lambda _: None, {AUX: [0, 1, 5]}, "is 5, expected an integer of at"),
    "peagle": (lambda _: None, {"speculators_model_type": "peagle"}, "is 'peagle', expected"),
    "sizes of another layer": (lambda _: None, {"intermediate_size": 40}, "has shape (48, 32)"),
    "a rope by length": (
        lambda _: None,
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "rope_type is 'dynamic'",
    ),
    "a layer by name": (
        lambda _: None,
        {"transformer_layer_config": "llama"},
        "the layer is 'llama', expected an object with its sizes",
    ),
    "a text for a size": (lambda _: None, {"head_dim": "8"}, "head_dim is '8', expected an intege"),
    "no epsilon": (lambda _: None, {"rms_norm_eps": "x"}, "is 'x', expected a number above"),
    "a text for a flag": (lambda _: None, {"norm_output": "false"}, "expected true or false"),
    "a row for a matrix": (replaced("fc.weight", lambda fc: fc[0]), {}, "expected a matrix's"),
    "no tokens": (replaced("d2t", lambda d2t: d2t[:0]), {}, "expected a row of integers"),
    "norms of queries": (
        lambda tensors: tensors.update({"midlayer.self_attn.q_norm.weight": np.ones(8)}),
        {},
        "has the tensor midlayer.self_attn.q_norm.weight",
    ),
}


@pytest.mark.parametrize("case", EAGLE_REFUSED)
def test_eagles_that_do_not_fit_are_refused(case, tmp_path):
    spoil, changes, sentence = EAGLE_REFUSED[case]
    model = speculative_model()
    tensors, _, further = eagle3(np.random.default_rng(0), model, drafted=60)
    spoil(tensors)
    directory = write(tmp_path / "head", tensors, further["config"] | changes)
    with pytest.raises(UserError) as error:
        read_head(directory, model.model, model.config)
    assert sentence in str(error.value)


def test_what_an_eagle3_reads_is_said(tmp_path):
    """Without ids the authors' three; torch's booleans and long integers."""
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB_SIZE}
    model, base = speculative_model(), tiny_llama_directory(tmp_path / "base", **sizes)
    tensors, _, further = eagle3(np.random.default_rng(0), model, drafted=60)
    source, target = tmp_path / "torch", tmp_path / "mlx"
    source.mkdir()
    values = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
    assert (values["d2t"].dtype, values["t2d"].dtype) == (torch.int64, torch.bool)
    torch.save(values, source / "pytorch_model.bin")
    (source / "config.json").write_text(json.dumps(further["config"]))
    result = run("convert", "--model", base, "--draft-head", source, "--mlx-path", target)
    assert "it reads the hidden states that go into layers 2, 2, 1" in result.stderr
    head = read_head(target, model.model, model.config)
    assert head.tokens.tolist() == (np.arange(60) + tensors["d2t"]).tolist()
