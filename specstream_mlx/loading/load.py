"""``load`` finds, reads and checks a base model and mounts an adapter on it."""

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from ..adapters.description import describe
from ..distributed.ranks import ranks_of
from ..distributed.sharding import check_divisible, shard
from ..engine.self_check import check_tree
from ..errors import UserError, naming, shown
from ..files import (
    for_libraries,
    model_headers,
    not_finite,
    read_json,
    reason,
    sampled_digest,
    tensor_headers,
    tokenizer_files,
)
from ..hardware.weights import hold_weights
from ..heads.read_head import head_files
from ..models.architectures import (
    architecture_of,
    check_end_tokens,
    check_types,
    explicit_fields,
    fp8_tensor,
    model_classes,
)
from ..options import checked
from ..vocabulary import mend_decoder
from .model_paths import (
    WEIGHTS,
    adapter_directory,
    head_directory,
    model_directory,
    read_config,
    weight_files,
)
from .speculative_model import SpeculativeModel


@overload
def load(  # type: ignore[overload-overlap]
    path_or_hf_repo: str | Path, *further: Any, return_config: Literal[True], **named: Any
) -> tuple[SpeculativeModel, TokenizerWrapper, dict[str, Any]]: ...


@overload
def load(
    path_or_hf_repo: str | Path, *further: Any, **named: Any
) -> tuple[SpeculativeModel, TokenizerWrapper]: ...


@checked()  # type: ignore[misc]
def load(
    path_or_hf_repo: str | Path,
    tokenizer_config: dict[str, Any] | None = None,
    model_config: dict[str, Any] | None = None,
    adapter_path: str | Path | None = None,
    lazy: bool = False,
    return_config: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    *,
    weights: str = "auto",
    group: mx.distributed.Group | None = None,
    draft_head: str | Path | None = None,
    compiled: bool | None = None,
    reproducible: bool = False,
) -> tuple[Any, ...]:
    """Load a base model in MLX format and, optionally, an adapter directory.

    Args:
        path_or_hf_repo: a local directory or a Hugging Face repository.
        tokenizer_config: further arguments for the tokenizer.
        model_config: fields that replace those of the model's ``config.json``.
        adapter_path: an adapter directory, or else the name of a bundled adapter or of one's own.
        lazy: read weights when they are first used, as in mlx_lm.
        return_config: also return the configuration as mlx_lm completes it.
        revision: a branch, a tag or a commit of the repository.
        trust_remote_code: refused; no code that comes with a model is run here.
        weights: how to hold quantized weights in memory: ``packed``, ``expanded``, or ``auto`` for
            whichever runs faster on this machine.
        group: from ``mx.distributed.init()``, of processes that run the same program: each holds
            its part of the model, and what rank 0 decides all do.
        draft_head: directory or repository of a published EAGLE-3 head for the base; ``auto``: that
            of ``heads.published_heads``.
        compiled: whether steps are compiled; ``None``: where that pays.
        reproducible: let no timing and no earlier text decide how much is drafted and how weights
            are kept, and build all steps of a shape in the same way: in 16 bit, too, a prompt (or a
            batch of them) then has the same text on this machine however often it is written.

    Raises:
        UserError: the model or the adapter cannot be used; one sentence says why.
    """
    if trust_remote_code:
        raise UserError(
            "trust_remote_code is True, but no code that comes with a model is run here, "
            "expected False"
        )
    ranks = None if group is None else ranks_of(group)
    path = model_directory(path_or_hf_repo, revision)
    if adapter_path is not None:  # what is soon found wrong is found before weights are read
        describe(adapter_directory(adapter_path))
    if draft_head is not None:
        draft_head = head_directory(draft_head, path, read_config(path, model_config))
        head_files(draft_head)
    model, full_config = read_model(path, model_config=model_config)
    config = read_config(path, model_config)
    tokenizer = read_tokenizer(path, full_config, tokenizer_config)
    if ranks is None:
        model, held = hold_weights(model, weights, measures=not reproducible)
    else:
        check_divisible(model, config, ranks)
        ranks.agree(
            f"the digest of {path}", sampled_digest([path / "config.json", *weight_files(path)])
        )
        # Rank 0 measures which form is faster; the others follow it.
        choice = weights if ranks.is_first else ranks.receive("weights")
        model, held = hold_weights(model, choice, measures=not reproducible)
        if ranks.is_first:
            ranks.send("weights", held.form)
        shard(model, ranks)
    if not lazy:
        _check_finite(path, model)
    speculative = SpeculativeModel(
        *(model, config, path),
        held=held,
        ranks=ranks,
        compiles=compiled,
        reproducible=reproducible,
    )
    if adapter_path is not None:
        speculative.swap_adapter(adapter_path)
    speculative.mount_head(draft_head)
    return (speculative, tokenizer, full_config) if return_config else (speculative, tokenizer)


def load_draft_model(path_or_hf_repo: str | Path, tokenizer: TokenizerWrapper) -> SpeculativeModel:
    """Load a model that drafts for another one, whose tokens it must share."""
    draft, its_tokenizer = load(path_or_hf_repo)
    theirs, ours = tokenizer.get_vocab(), its_tokenizer.get_vocab()
    if theirs != ours:
        differing = sorted(theirs.items() ^ ours.items(), key=lambda pair: pair[1])
        raise UserError(
            f"the draft model {path_or_hf_repo} has another vocabulary: token {differing[0][1]} is "
            "not the same, expected the model's own tokens"
        )
    return draft


def read_model(
    directory: Path, to_run: bool = True, model_config: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Any]]:
    """Read a model and its configuration as mlx-lm completes it; weights are read when first used.

    If it is going to be run, a model of an untested architecture must pass ``check_tree``, which
    reads all of its weights.
    """
    path = directory / "config.json"
    config, stored = read_config(directory, model_config), read_json(path)
    changes = {name: v for name, v in config.items() if name not in stored or stored[name] != v}
    fields = {**changes, **explicit_fields(config)}
    weight_files(directory)
    generation = directory / "generation_config.json"
    if os.path.lexists(generation):
        said = read_json(generation)
        with naming(generation):
            check_end_tokens(said)
    with naming(path):
        check_types(stored | fields, model_classes(config)[1])
    with for_libraries(directory, WEIGHTS) as readable:
        try:
            model, full_config = load_model(
                readable, lazy=True, model_config=fields, get_model_classes=model_classes
            )
        except Exception as error:  # a wrong field may raise any error in mlx-lm
            why = _field_at_fault(readable, stored | fields) or reason(error)
            if tensor := fp8_tensor(model_headers(weight_files(directory))):
                why = f"{tensor}, and {why}"
            raise UserError(f"{path} and the weights do not fit: {why}") from None
    _check_dtypes(directory, model)
    if to_run and not architecture_of(config["model_type"]).tested:
        with naming(path):
            check_tree(model, config)
    return model, full_config


def _field_at_fault(directory: Path, config: dict[str, Any]) -> str | None:
    """Find the field of a configuration that, at its default or negated, would fit the weights."""
    for each in dataclasses.fields(model_classes(config)[1]):
        value = config.get(each.name, each.default)
        other = not value if isinstance(value, bool) else each.default
        if other == value or other is dataclasses.MISSING:
            continue
        with suppress(Exception):
            changed = {**config, each.name: other}
            load_model(directory, True, True, changed, model_classes)
            return f"{each.name} is {shown(value)}, with {other} they do"
    return None


def read_tokenizer(
    directory: Path, config: dict[str, Any], extra: dict[str, Any] | None = None
) -> TokenizerWrapper:
    """Read the tokenizer of a model with ``config``; no code that came with it is run."""
    arguments: dict[str, Any] = {"trust_remote_code": False}
    end = (extra or {}).get("eos_token")
    if end is not None:  # transformers would add one that it does not know, which no model writes
        with tokenizer_files(directory) as readable:
            known = load_tokenizer(readable, arguments).get_vocab()
        if str(end) not in known:
            raise UserError(f"eos_token is {shown(end)}, expected one of the tokenizer's tokens")
    with tokenizer_files(directory) as readable:
        ends = config.get("eos_token_id")
        arguments |= extra or {}
        tokenizer = load_tokenizer(readable, arguments, eos_token_ids=ends)
    mend_decoder(tokenizer)
    return tokenizer


def _check_dtypes(directory: Path, model: nn.Module) -> None:
    """Check that all weights have a floating-point dtype, except packed ones."""
    for path, module in model.named_modules():
        packed = any("scale" in name for name in module)
        affine = packed and getattr(module, "mode", None) == "affine"
        for name, tensor in module.items():
            if not isinstance(tensor, mx.array):
                continue
            fits = mx.issubdtype(tensor.dtype, mx.floating) or (packed and not affine)
            expected = "a floating-point one"
            if affine and name == "weight":
                fits, expected = tensor.dtype == mx.uint32, "uint32, since it has scales"
            if not fits:
                where = _origin(directory, f"{path}.{name}")
                found = str(tensor.dtype).removeprefix("mlx.core.")
                raise UserError(f"{where} has dtype {found}, expected {expected}")


def _check_finite(directory: Path, model: nn.Module) -> None:
    """Evaluate a model's weights and check that none is NaN or infinite."""
    name = not_finite(dict(tree_flatten(model.parameters())))
    if name is not None:
        where = _origin(directory, name)
        raise UserError(f"{where} holds NaN or infinity, or its scales do, expected finite numbers")


def _origin(directory: Path, name: str) -> str:
    """Name a tensor with its file, if it has the same name there, else with the directory."""
    files = (file for file in weight_files(directory) if name in tensor_headers(file))
    return f"{next(files, directory)}: {name}"
