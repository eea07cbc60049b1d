"""Published prompt tokens: streams guess what transformers computes behind the same rows."""

import json
import re

import numpy as np
import pytest
import torch
from command_line import refusal, run
from peft import PromptTuningConfig, get_peft_model
from random_models import assert_close, decoder_after, plain_tokens, take
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.load import load_base
from tiny_peft import TOKENS
from transformers import AutoConfig, DynamicCache

from specstream_mlx import generate, load
from specstream_mlx.engine.tree import root_only

COUNT, PREFIX = 3, 5
PPD = {"num_special_tokens": COUNT, "vt_attention_type": "ensemble", "aggregation_type": "mean"}


@pytest.fixture(scope="module")
def ppd(hf, tmp_path_factory):
    """What PPD's trainer leaves: PEFT's prompt tuning, with fields of its own."""
    directory = tmp_path_factory.mktemp("ppd") / "tokens"
    model = get_peft_model(
        load_base(hf), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=COUNT)
    )
    torch.manual_seed(3)
    with torch.no_grad():
        model.prompt_encoder.default.embedding.weight.normal_()
    model.save_pretrained(directory)
    edit(directory / "adapter_config.json", **PPD)
    return directory


@pytest.fixture(scope="module")
def bita(hf, tmp_path_factory):
    """A whole model with BiTA's tensors in it; of SSD's shape, with the base's key-value heads."""
    directory = tmp_path_factory.mktemp("bita") / "model"
    base = load_base(hf)
    base.save_pretrained(directory)
    tensors, sizes = load_file(directory / "model.safetensors"), base.config
    torch.manual_seed(4)
    width = 2 * sizes.num_hidden_layers * sizes.num_key_value_heads * sizes.head_dim
    tensors["model.mask_tokens.weight"] = torch.randn(COUNT, sizes.hidden_size)
    tensors["model.prefix_encoder.embedding.weight"] = torch.randn(PREFIX, width)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    edit(directory / "config.json", mask_num=COUNT, mask_diff=True, prompt_num=PREFIX)
    return directory


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def expected(hf, embeddings, prefix=None):
    """Transformers' logits (gamma, vocab) of prompt tokens behind ``TOKENS``.

    Args:
        embeddings: (gamma, h).
        prefix: (n, 2 * layers * kv heads * head size) keys and values that they alone see.
    """
    config = AutoConfig.from_pretrained(hf, attn_implementation="eager")
    base = load_base(hf).__class__.from_pretrained(hf, config=config, dtype=torch.float32).eval()
    cache, learned = DynamicCache(config=config), 0
    if prefix is not None:
        learned = len(prefix)
        shape = learned, config.num_hidden_layers, 2, config.num_key_value_heads, config.head_dim
        for layer in range(config.num_hidden_layers):
            keys, values = prefix.view(shape)[:, layer].permute(1, 2, 0, 3)[:, None]
            cache.update(keys, values, layer)
    main, rows = len(TOKENS), len(TOKENS) + len(embeddings)
    seen = torch.ones(rows, rows).tril().bool()
    of_prefix = (torch.arange(rows) >= main)[:, None].expand(rows, learned)
    mask = torch.cat((of_prefix, seen), 1)
    hidden = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    before = base.get_input_embeddings()(torch.tensor(TOKENS))
    with torch.no_grad():
        logits = base(
            inputs_embeds=torch.cat((before, embeddings))[None],
            attention_mask=hidden[None, None],
            position_ids=torch.arange(rows)[None],
            past_key_values=cache,
        ).logits[0]
    return logits[main:].numpy()


def guessed(base, adapter):
    """Our streams' logits (gamma, vocab) beside the last of ``TOKENS``, and the model."""
    model, _ = load(base, adapter_path=adapter)
    result = take(decoder_after(model, TOKENS), root_only(TOKENS[-1]), "beside")
    return result.streams.logits, model


@pytest.mark.parametrize("binary", [False, True], ids=["safetensors", "bin"])
def test_ppd(ppd, hf, mlx, tmp_path, binary):
    embeddings = load_file(ppd / "adapter_model.safetensors")["prompt_embeddings"]
    source = ppd
    if binary:
        source = tmp_path / "bin"
        source.mkdir()
        (source / "adapter_config.json").write_text((ppd / "adapter_config.json").read_text())
        torch.save({"prompt_embeddings": embeddings}, source / "adapter_model.bin")
    target = tmp_path / "out"
    assert (
        run("convert", "--model", mlx, "--adapter-path", source, "--mlx-path", target).exit_code
        == 0
    )
    logits, model = guessed(mlx, target)
    assert_close(logits, expected(hf, embeddings))
    text = generate(model, load(mlx)[1], TOKENS, max_tokens=12, tree_size=6)
    assert text == load(mlx)[1].decode(plain_tokens(model.model, TOKENS, 12))


@pytest.mark.parametrize("kind", ["bita", "one mask for all", "no prefix"])
def test_bita(kind, bita, hf, mlx, tmp_path):
    tensors = load_file(bita / "model.safetensors")
    embeddings = tensors["model.mask_tokens.weight"]
    prefix = tensors["model.prefix_encoder.embedding.weight"]
    source = tmp_path / "model"
    source.mkdir()
    fields = {}
    if kind == "one mask for all":
        tensors["model.mask_tokens.weight"] = embeddings[:1]
        embeddings, fields = embeddings[:1].repeat(COUNT, 1), {"mask_diff": False}
    elif kind == "no prefix":
        del tensors["model.prefix_encoder.embedding.weight"]
        prefix, fields = None, {"prompt_num": 0}
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (source / "config.json").write_text((bita / "config.json").read_text())
    edit(source / "config.json", **fields)
    target = tmp_path / "out"
    assert (
        run("convert", "--model", mlx, "--adapter-path", source, "--mlx-path", target).exit_code
        == 0
    )
    logits, _ = guessed(mlx, target)
    assert_close(logits, expected(hf, embeddings, prefix))


def test_a_prefix_of_another_order_would_show(bita, hf, mlx, tmp_path):
    """Negative control: keys and values exchanged."""
    tensors = load_file(bita / "model.safetensors")
    prefix = tensors["model.prefix_encoder.embedding.weight"]
    target = tmp_path / "out"
    run("convert", "--model", mlx, "--adapter-path", bita, "--mlx-path", target)
    logits, _ = guessed(mlx, target)
    other = prefix.view(PREFIX, -1, 2, prefix.shape[1] // 8).flip(2).reshape(PREFIX, -1)
    wrong = expected(hf, tensors["model.mask_tokens.weight"], other)
    assert np.abs(np.array(logits) - wrong).max() > 0.1 * np.abs(wrong).max()


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("ppd", {"virtual_tokens_per_special_token": 2}, "virtual_tokens_per_special_token is 2"),
        ("ppd", {"use_prefix_tuning": True}, "use_prefix_tuning is True, expected False"),
        ("ppd", {"use_custom_lm_head": True}, "use_custom_lm_head is True, expected False"),
        (
            "ppd",
            {"aggregation_type": "weighted"},
            "aggregation_type is 'weighted', expected 'mean'",
        ),
        (
            "ppd",
            {"vt_attention_type": "encoder"},
            "vt_attention_type is 'encoder', expected one of",
        ),
        ("ppd", {"num_special_tokens": 4}, "prompt_embeddings has shape (3, 32), expected (4, 32)"),
        ("ppd", {"num_special_tokens": "x"}, "num_special_tokens is 'x', expected an integer"),
        ("bita", {"mask_num": 0}, "mask_num is 0, expected"),
        ("bita", {"prefix_projection": True}, "prefix_projection is True, expected False"),
        ("bita", {"mask_num": 2}, "mask_tokens.weight has shape (3, 32), expected (2, 32)"),
    ],
)
def test_what_cannot_be_run_is_refused(kind, fields, sentence, request, mlx, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for file in request.getfixturevalue(kind).iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    edit(source / ("adapter_config.json" if kind == "ppd" else "config.json"), **fields)
    found = refusal(
        run("convert", "--model", mlx, "--adapter-path", source, "--mlx-path", tmp_path / "out")
    )
    assert sentence in found
    assert not (tmp_path / "out").exists()


def test_keys_for_all_heads_are_refused_where_heads_share_them(bita, hf, mlx, tmp_path):
    """As BiTA has them for a base with grouped heads."""
    source = tmp_path / "source"
    source.mkdir()
    tensors = load_file(bita / "model.safetensors")
    name = "model.prefix_encoder.embedding.weight"
    tensors[name] = torch.randn(PREFIX, 2 * tensors[name].shape[1])
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    (source / "config.json").write_text((bita / "config.json").read_text())
    command = "convert", "--model", mlx, "--adapter-path", source, "--mlx-path", tmp_path / "out"
    assert re.search(r"has shape \(5, 256\), expected \(.., 128\)", refusal(run(*command)))


@pytest.mark.parametrize("kind", ["ppd", "bita"])
def test_they_are_not_verified_and_nothing_is_written(kind, request, mlx, tmp_path):
    source, target = request.getfixturevalue(kind), tmp_path / "out"
    command = "convert", "--model", mlx, "--adapter-path", source, "--mlx-path", target, "--verify"
    assert "holds published prompt tokens" in refusal(run(*command))
    assert not target.exists()
