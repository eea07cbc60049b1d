"""``specstream-mlx convert``."""

import os
from pathlib import Path

from ..errors import UserError
from ..loading.model_paths import local_directory, model_directory
from ..options import DIRECTORY, FLAG, TEXT, choice, each, one_of, option
from ..terminal.notes import note
from ..terminal.progress import progress

_DIRECTORIES = each("a list of directories", lambda value: isinstance(value, Path))


def convert(
    *,
    model: str = option(
        ...,
        TEXT,
        "A base with safetensors, or a GGUF file, whose blocks are repacked.",
        metavar="DIR|REPO|GGUF",
    ),
    mlx_path: Path | None = option(
        None, DIRECTORY, "Where the result goes.", without=("to_pytorch",)
    ),
    adapter_path: list[Path] | None = option(
        None,
        _DIRECTORIES,
        "Convert this adapter for the base instead: LoRA of PEFT or mlx_lm, streams, or both. "
        "Given several times, each becomes a directory of its name in --mlx-path.",
        metavar="DIR",
        without=("bits", "quant_predicate"),
    ),
    draft_head: Path | None = option(
        None,
        DIRECTORY,
        "Convert this published EAGLE-3 head, in torch's format, for the base instead.",
        without=("adapter_path", "bits", "quant_predicate", "dtype", "to_pytorch"),
    ),
    bits: int | None = option(
        None, one_of(4, 8), "Quantize to 4 or 8 bits per weight.", without=("quant_predicate",)
    ),
    quant_predicate: str | None = option(
        None,
        choice("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6", "embeddings_4_8"),
        "Quantize by a recipe, instead of --bits: mlx_lm's mixed_2_6, mixed_3_4, mixed_3_6 and "
        "mixed_4_6; or embeddings_4_8, which keeps embeddings and head at 8 bits.",
        metavar="RECIPE",
    ),
    group_size: int = option(
        64,
        one_of(32, 64, 128),
        "Weights that share a scale: 32, 64 or 128.",
        needs=("bits", "quant_predicate"),
    ),
    dtype: str | None = option(
        None,
        choice("float16", "bfloat16", "float32"),
        "Dtype of unquantized tensors. Default: unchanged; of a GGUF file the smallest exact one.",
    ),
    to_pytorch: Path | None = option(
        None,
        DIRECTORY,
        "Instead of --mlx-path: write the adapter, trained in MLX, in PEFT's format.",
        without=("bits", "quant_predicate", "dtype", "overwrite"),
        needs=("adapter_path",),
    ),
    overwrite: bool = option(False, FLAG, "Replace the converted model or adapter at --mlx-path."),
) -> None:
    r"""Convert a base model or an adapter from PyTorch to MLX.

    Examples:

    A base, quantized to 4 bits:

        specstream-mlx convert --model path/to/hf-model --mlx-path my-model --bits 4

    A GGUF file, its blocks as they are:

        specstream-mlx convert --model SmolLM2-135M-Instruct.Q4_1.gguf --mlx-path smollm2

    An adapter for a base:

        specstream-mlx convert --model path/to/hf-model --adapter-path runs/streams/adapter \
            --mlx-path streams
    """
    is_gguf = os.path.isfile(model) or (model.endswith(".gguf") and not os.path.isdir(model))
    refused: dict[str, object] = {"--adapter-path": adapter_path, "--draft-head": draft_head}
    refused |= {"--bits": bits, "--quant-predicate": quant_predicate, "--to-pytorch": to_pytorch}
    for flag in (flag for flag, value in refused.items() if value and is_gguf):
        raise UserError(
            f"{flag} was given with the file {model}, expected it with a directory: convert the "
            "GGUF first, without it"
        )
    adapters, target = adapter_path or [], mlx_path or to_pytorch
    if to_pytorch is not None and len(adapters) != 1:
        raise UserError("--to-pytorch converts one adapter, expected one --adapter-path")
    if target is None:
        raise UserError("--mlx-path is missing, expected where the result goes")

    if not is_gguf:
        local_directory(model)  # or fail before MLX is imported, which takes a while
    written = [target]
    if to_pytorch is not None:
        from specstream_mlx.convert.to_pytorch import convert_to_pytorch

        convert_to_pytorch(adapters[0], model_directory(model), target)
    elif is_gguf:
        from specstream_mlx.convert.to_mlx.gguf import convert_gguf

        with progress("Converting") as show:
            changes = convert_gguf(Path(model), target, dtype, show, overwrite=overwrite)
        for change in changes:
            note(change)
    elif draft_head is not None:
        from specstream_mlx.convert.to_mlx.draft_head import convert_head

        mounted = convert_head(draft_head, model_directory(model), target, overwrite=overwrite)
        head, reads = mounted.config, map(str, mounted.boundaries)
        note(f"{head.kind}: {head.parameters:,} parameters, to depth {head.num_streams}")
        note(f"it reads the hidden states that go into layers {', '.join(reads)}")
    else:
        from specstream_mlx.convert.to_mlx.adapter import convert_adapter, convert_adapters
        from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
        from specstream_mlx.convert.to_mlx.overwrite import check_new

        if not overwrite:
            check_new(target)
        base = model_directory(model)
        if len(adapters) > 1:
            written = convert_adapters(adapters, base, target, dtype, overwrite=overwrite)
        elif adapters:
            convert_adapter(adapters[0], base, target, dtype, overwrite=overwrite)
        else:
            quantization = Quantization(bits, group_size, quant_predicate)
            with progress("Converting") as show:
                convert_base(base, target, quantization, dtype, show, overwrite=overwrite)
    for path in written:
        note(f"wrote {path}")
