"""Adapters of every architecture: PEFT's LoRA, and streams layer by layer, MLX against PyTorch."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import parity
import pytest
import torch
from architecture_models import VOCAB_SIZE, pair, scratch
from command_line import refusal, run
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model
from parity import BOUND, close, mlx_logits, peft_directory, torch_logits
from peft import LoraConfig, get_peft_model
from random_models import random_prompt, take
from specstream_mlx.convert.pytorch import backbone, reference
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.backbone import linear_layers
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_adapter, load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from torch_tiny import CONDITIONED, tiny_model
from transformers import AttentionInterface

from specstream_mlx import load
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import DraftTree
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.models.architectures import ARCHITECTURES, model_classes

TOKENS = random_prompt(30, seed=4, vocab_size=VOCAB_SIZE)  # more than two windows
SHORT = TOKENS[:10]  # less than one, as mlx_lm leaves some windows out
CASES = [
    "Llama 3.1",
    "Mistral 0.1, window",
    "Phi-2",
    "Phi-3 mini 4k, window",
    "Qwen2, windows on the upper layers",
    "Qwen3 8B",
    "Gemma 2",
    "Gemma 3",
    "OPT",
    "OPT, norms after",
]
STREAMS = {
    "lossless": {"stream_mlp": "base+adapter"},
    "shared": {"stream_init": "linear", "stream_init_rank": 4, "draft_vocabulary": 20},
}


@cache
def bases(case):
    """A case as a Hugging Face directory and in MLX format."""
    hf, mlx = pair(case).model.path, Path(scratch().name) / f"mlx {case}"
    convert_base(hf, mlx)
    return hf, mlx


def decoded(model, tokens, start):
    """(tokens - start, vocab) logits of our runtime: a prefilled prompt, then one pass."""
    decoder = Decoder(model.model, model.streams, make_caches(model.model, model.config))
    decoder.prefill(mx.array(tokens[:start]))
    rows = np.arange(len(tokens) - start, dtype=np.int32)
    chain = DraftTree(np.array(tokens[start:], np.int32), rows - 1, rows)
    return np.array(take(decoder, chain, "none").logits)


def stock(base, adapter):
    """The base with the adapter through mlx_lm's own loaders, which need our classes for OPT."""
    if ARCHITECTURES[read_config(base)["model_type"]].own_module is None:
        return mlx_lm.load(str(base), adapter_path=str(adapter))[0]
    model, _ = load_model(base, get_model_classes=model_classes)
    return load_adapters(model, str(adapter))


def test_every_architecture_has_a_case():
    assert {pair(case).model.config["model_type"] for case in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_lora_logits_are_those_of_peft(case, tmp_path):
    """On all linear layers, with a rank of their own for some and a scale of its own for one."""
    hf, base = bases(case)
    targets = linear_layers(pair(case).torch_model)
    names = [name for name, _ in pair(case).torch_model.named_modules()]
    one = next(n for n in names if ".layers.1." in n and n.endswith(targets[-1]))
    patterns = {"rank_pattern": {targets[0]: 2}, "alpha_pattern": {one: 3}}
    model = peft_directory(hf, tmp_path / "peft", target_modules=targets, **patterns)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    expected = torch_logits(model, TOKENS)
    ours, _ = load(base, adapter_path=tmp_path / "out")
    matrices = [n for n, p in pair(case).torch_model.named_parameters() if p.ndim == 2]
    assert len(ours.adapter.lora) == 2 * sum(".layers." in name for name in matrices)
    assert close(expected[21:], decoded(ours, TOKENS, 21))
    mounted = stock(base, tmp_path / "out")
    assert close(expected[: len(SHORT)], mlx_logits(mounted, SHORT))
    bare = pair(case).logits(TOKENS)
    assert np.abs(bare - expected)[21:].max() > 0.1
    ours.swap_adapter(None)
    assert close(bare[21:], decoded(ours, TOKENS, 21))


def differences(case, mode, tmp_path, tokens=TOKENS, prompt_length=21, **streams):
    """What ``parity.differences`` finds for random streams, and in shared mode random LoRA."""
    hf, base = bases(case)
    torch.manual_seed(0)
    model = load_base(hf)
    if mode == "shared":
        model = get_peft_model(model, LoraConfig(r=4, target_modules=linear_layers(model)))
    streams = {"num_msa_layers": 3, "base_fingerprint": base_fingerprint(hf), **streams}
    made = tiny_model(mode, base=model, **streams)
    if count := streams.get("draft_vocabulary"):
        made.streams.vocabulary = torch.randperm(model.config.vocab_size)[:count].int()
    write_adapter(made, tmp_path / "torch")
    convert_adapter(tmp_path / "torch", hf, tmp_path / "mlx")
    directories = hf, tmp_path / "torch", base, tmp_path / "mlx"
    return parity.differences(*directories, tokens, prompt_length)


ROTATION = {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3, "stream_init_rank": 0}
OTHERS = {**CONDITIONED, **ROTATION, "num_streams": 2, "stream_keys": 5}


@pytest.mark.parametrize(("prompt_length", "more"), [(21, {}), (2, OTHERS)], ids=["plain", "other"])
@pytest.mark.parametrize("mode", STREAMS)
@pytest.mark.parametrize("case", CASES)
def test_streams_are_those_of_pytorch(case, mode, prompt_length, more, tmp_path):
    """Hidden states of main stream and streams, layer by layer, then all logits.

    Heads on true tokens, after more tokens than are selected, and than a window reaches back.
    Brought back to PyTorch, an adapter is as it was.
    """
    found = differences(case, mode, tmp_path, prompt_length=prompt_length, **STREAMS[mode] | more)
    assert not {name: value for name, value in found.items() if not value <= BOUND}
    layers = pair(case).model.config["num_hidden_layers"]
    names = {f"layer {number} main" for number in range(layers)}
    names |= {f"layer {number} streams" for number in range(layers - 3, layers)}
    assert set(found) == names | {"logits", "stream logits", "early-exit logits"}
    if not more:
        (hf, base), back = bases(case), tmp_path / "back"
        flags = "--model", base, "--adapter-path", tmp_path / "mlx", "--to-pytorch", back
        assert run("convert", *flags).exit_code == 0
        assert "exists already" in refusal(run("convert", *flags))
        tokens, *sizes = (torch.tensor(x) for x in ([TOKENS], [21], [30]))
        first, second = (load_adapter(hf, path) for path in (tmp_path / "torch", back))
        with torch.no_grad():
            expected, found = (model(tokens, *sizes) for model in (first, second))
        assert first.config == second.config
        torch.testing.assert_close(found.main_logits, expected.main_logits)
        torch.testing.assert_close(found.stream_logits, expected.stream_logits)


def other_keys(more=0, **changes):
    """A wrong selection of keys."""
    right = reference.likeliest_keys

    def wrong(queries, keys, positions, scoring, count):
        return right(queries, keys, positions, replace(scoring, **changes), count + more)

    return reference, "likeliest_keys", wrong


def other_tokens(tokens, positions, count, right=reference.tokens_after):
    return right(tokens, positions + 1, count)


def other_biases(head, features, read, right=reference.ConditionedHead.forward):
    return right(head, features, read + head.biases.roll(1, 0) - head.biases)


def forgetful(**without):
    """Our attention, as if transformers did not hand over a detail."""
    mapping = dict(AttentionInterface._global_mapping)
    mapping[backbone.ATTENTION] = lambda *args, **given: backbone._attention(
        *args, **{**given, **without}
    )
    return AttentionInterface, "_global_mapping", mapping


HEAD = "^stream logits$", "^(?!stream logits)"
WRONG = {
    "count of keys": (other_keys(more=1), {"stream_keys": 5}, (" streams$", "main")),
    "scale of keys": (other_keys(scale=1.0), {"stream_keys": 5}, (" streams$", "main")),
    "cap of keys": (other_keys(softcap=None), {"stream_keys": 5}, (" streams$", "main")),
    "token before": ((reference, "tokens_after", other_tokens), CONDITIONED, HEAD),
    "stream": ((reference.ConditionedHead, "forward", other_biases), CONDITIONED, HEAD),
    "epsilon": ((reference, "_EPSILON", 1e-2), CONDITIONED, HEAD),
    "window": (forgetful(sliding_window=None), {}, ("^stream logits$", "^$")),
    "cap": (forgetful(softcap=None), {}, ("^stream logits$", "^$")),
    "scale": (forgetful(scaling=1 / 16), {}, ("^stream logits$", "^$")),
}
"""What is changed in the reference, streams on which it shows, what differs then and what stays."""


@pytest.mark.parametrize("detail", WRONG)
def test_a_wrong_detail_would_show(detail, tmp_path, monkeypatch):
    """Negative control."""
    change, streams, (differs, stays) = WRONG[detail]
    monkeypatch.setattr(*change)
    found = differences("Gemma 2", "lossless", tmp_path, **STREAMS["lossless"], **streams)
    assert max(value for name, value in found.items() if re.search(differs, name)) > 10 * BOUND
    assert not [n for n, value in found.items() if re.search(stays, n) and not value <= BOUND]


def test_longrope_takes_its_long_factors_for_short_texts_too(tmp_path):
    """As mlx-lm does, in the reference and with PEFT's LoRA; transformers does not."""
    case = "Phi-3 mini 128k, longrope"
    hf, base = bases(case)
    found = differences(case, "shared", tmp_path, tokens=SHORT, prompt_length=5)
    assert all(value <= BOUND for value in found.values())
    tuned = peft_directory(hf, tmp_path / "peft", target_modules=["qkv_proj"])
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(base, adapter_path=tmp_path / "out")
    assert close(torch_logits(tuned, SHORT), mlx_logits(ours.model, SHORT))
    assert not close(pair(case).logits(SHORT), torch_logits(load_base(hf), SHORT))
