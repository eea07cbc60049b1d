"""``specstream-mlx convert``."""

import os
from pathlib import Path
from typing import Annotated, Literal

from typer import Exit, Option

from ..config import UserError
from ..options.kinds import integer
from ..terminal.commands import of_kind
from ..terminal.notes import note

_SAMPLE = "The quick brown fox jumps over the lazy dog, and then it goes home to write about it."
_LONGEST = 1024  # tokens that are compared, however many keys streams select


def convert(
    model: Annotated[
        str,
        Option(
            metavar="DIR|REPO|GGUF",
            help="Base with safetensors: a directory, or a Hugging Face repository, which is "
            "downloaded unless it is in the cache. Or a GGUF file, whose blocks are repacked.",
        ),
    ],
    mlx_path: Annotated[Path | None, Option(metavar="DIR", help="Where the result goes.")] = None,
    adapter_path: Annotated[
        list[Path] | None,
        Option(
            metavar="DIR",
            help="An adapter: PEFT LoRA, mlx_lm LoRA, speculative_streaming files, or LoRA and "
            "streams. With it, the adapter is converted instead of the base. Given several times, "
            "each becomes a directory of its name in --mlx-path.",
        ),
    ] = None,
    bits: Annotated[
        Literal["4", "8"] | None, Option(help="Quantize the base to so many bits per weight.")
    ] = None,
    recipe: Annotated[
        Literal[
            *("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"),
            *("embeddings_4_8", "msa_4_6", "msa_4_8"),
        ]
        | None,
        Option(
            "--quant-predicate",
            metavar="RECIPE",
            help="Quantize by a recipe, instead of --bits: mlx_lm's mixed_2_6, mixed_3_4, "
            "mixed_3_6 and mixed_4_6; embeddings_4_8, which keeps embeddings and head at 8 bits; "
            "or msa_4_6 and msa_4_8, which keep these and the MSA layers at 6 or 8.",
        ),
    ] = None,
    num_msa_layers: Annotated[
        int | None, of_kind(integer(1), "Top layers with streams, for msa_*.")
    ] = None,
    group_size: Annotated[
        Literal["32", "64", "128"], Option(help="Weights that share a scale.")
    ] = "64",
    dtype: Annotated[
        Literal["float16", "bfloat16", "float32"] | None,
        Option(
            help="Of what is not quantized, and of a GGUF's scales. Default: as it is, and for a "
            "GGUF the smallest that holds all of it exactly."
        ),
    ] = None,
    to_pytorch: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Instead of --mlx-path: write the adapter of --adapter-path, which MLX has "
            "trained, as the PyTorch trainer and PEFT read it.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        Option(
            "--verify",
            help="Run sample text through PyTorch and MLX and print the largest differences, of "
            "each layer where the adapter has streams; needs the torch extra and --adapter-path.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace the converted model or adapter at --mlx-path.")
    ] = False,
) -> None:
    """Convert a base model or an adapter from PyTorch to MLX.

    [bold]Examples[/bold]

    A base, quantized to 4 bits:

    [cyan]  specstream-mlx convert --model hf-llama --mlx-path llama-4bit --bits 4[/cyan]

    With what the streams of the 4 top layers rest on at 8 bits:

    [cyan]  specstream-mlx convert --model hf-llama --mlx-path llama-mixed
    --quant-predicate msa_4_8 --num-msa-layers 4[/cyan]

    A GGUF file, its blocks as they are:

    [cyan]  specstream-mlx convert --model SmolLM2-135M-Instruct.Q4_1.gguf
    --mlx-path smollm2[/cyan]

    An adapter for it, compared with PyTorch:

    [cyan]  specstream-mlx convert --model hf-llama --adapter-path runs/streams/adapter
    --mlx-path llama-streams --verify[/cyan]

    Two at once, to adapters/sql and adapters/summarize:

    [cyan]  specstream-mlx convert --model hf-llama --adapter-path sql --adapter-path summarize
    --mlx-path adapters[/cyan]

    An adapter that was trained in MLX, for PyTorch:

    [cyan]  specstream-mlx convert --model hf-llama --adapter-path llama-streams
    --to-pytorch torch-streams[/cyan]
    """
    if os.path.isfile(model) or (model.endswith(".gguf") and not os.path.isdir(model)):
        refused = {
            "--adapter-path": adapter_path,
            "--bits": bits,
            "--quant-predicate": recipe,
            "--num-msa-layers": num_msa_layers,
            "--to-pytorch": to_pytorch,
            "--verify": verify,
        }
        given = [name for name in refused if refused[name]]
        _from_gguf(Path(model), mlx_path, dtype, given, overwrite)
        return
    if to_pytorch is not None:
        _to_pytorch(model, mlx_path, adapter_path, to_pytorch)
        return
    if mlx_path is None:
        raise UserError("--mlx-path is missing, expected where the result goes")
    from specstream_mlx.convert.to_mlx.overwrite import check_new

    if not overwrite:
        check_new(mlx_path)
    if adapter_path and (bits is not None or recipe is not None):
        given = "--quant-predicate" if bits is None else "--bits"
        raise UserError(f"{given} quantizes a base, --adapter-path converts an adapter: give one")
    if bits is not None and recipe is not None:
        raise UserError("--bits and --quant-predicate were both given, expected at most one")
    if num_msa_layers is not None and recipe is None:
        raise UserError("--num-msa-layers belongs to --quant-predicate, which was not given")
    if verify and not adapter_path:
        raise UserError("--verify compares adapters: it needs --adapter-path")

    from specstream_mlx.convert.to_mlx.adapter import convert_adapter, convert_adapters
    from specstream_mlx.convert.to_mlx.base import convert_base

    from ..loading import model_directory
    from ..terminal.progress import progress

    base = model_directory(model)
    tokens = _sample_tokens(base) if verify else []
    written = [mlx_path]
    if not adapter_path:
        with progress("Converting") as show:
            convert_base(
                base,
                mlx_path,
                int(bits) if bits else None,
                int(group_size),
                dtype,
                show,
                recipe=recipe,
                num_msa_layers=num_msa_layers,
                overwrite=overwrite,
            )
    elif len(adapter_path) == 1:
        convert_adapter(adapter_path[0], base, mlx_path, dtype, overwrite=overwrite)
    else:
        written = convert_adapters(adapter_path, base, mlx_path, dtype, overwrite=overwrite)
    for path in written:
        note(f"wrote {path}")
    if verify and not all(
        [_same_as_pytorch(base, *pair, tokens) for pair in zip(adapter_path, written, strict=True)]
    ):
        raise Exit(1)


def _from_gguf(
    file: Path, mlx_path: Path | None, dtype: str | None, refused: list[str], overwrite: bool
) -> None:
    """Convert a GGUF file and say what became of its types."""
    if refused:
        raise UserError(
            f"{refused[0]} was given with the file {file}, expected it with a directory: convert "
            "the GGUF first, without it"
        )
    if mlx_path is None:
        raise UserError("--mlx-path is missing, expected where the result goes")
    from specstream_mlx.convert.to_mlx.gguf import convert_gguf

    from ..terminal.progress import progress

    with progress("Converting") as show:
        report = convert_gguf(file, mlx_path, dtype, show, overwrite=overwrite)
    for held in report.types:
        note(str(held))
    if report.obstacle is not None:
        note(
            f"scales and dense tensors are float32, since {report.obstacle} does not fit float16 "
            "exactly; with --dtype float16 they are rounded to it"
        )
    note(f"wrote {mlx_path}")


def _to_pytorch(
    model: str, mlx_path: Path | None, adapter_path: list[Path] | None, target: Path
) -> None:
    """Convert one adapter back."""
    if mlx_path is not None:
        raise UserError("--mlx-path and --to-pytorch were both given, expected one of them")
    if not adapter_path or len(adapter_path) > 1:
        raise UserError("--to-pytorch converts one adapter, expected one --adapter-path")
    from specstream_mlx.convert.to_pytorch import convert_to_pytorch

    from ..loading import model_directory

    convert_to_pytorch(adapter_path[0], model_directory(model), target)
    note(f"wrote {target}")


def _sample_tokens(model: Path) -> list[int]:
    """Return the token ids that ``--verify`` runs; done before anything is written.

    Raises:
        UserError: torch is missing, or the model has no tokenizer that can be read, or one with
            tokens that the model does not have.
    """
    try:
        from specstream_mlx.convert import parity  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"--verify needs {error.name}: pip install 'specstream-mlx[torch]'"
        ) from None
    from ..checked_files import check_tokens
    from ..loading import read_config, read_tokenizer

    config = read_config(model)
    tokens = read_tokenizer(model, config).encode(_SAMPLE)
    check_tokens(f"{model}: the tokenizer's text", tokens, config["vocab_size"])
    return tokens


def _compared_on(model: Path, adapter: Path, tokens: list[int]) -> tuple[list[int], int]:
    """The tokens to compare on, and how many of them are the prompt.

    Where streams select keys, the sample is repeated until there are more than they select, as far
    as the model's context reaches.
    """
    from itertools import cycle, islice

    from ..adapters.description import describe
    from ..loading import read_config

    streams = describe(adapter).stream_config
    count = len(tokens)
    if streams is not None and streams.stream_keys:
        context = read_config(model).get("max_position_embeddings") or _LONGEST
        count = max(count, min(count + streams.stream_keys, context, _LONGEST))
    return list(islice(cycle(tokens), count)), count - len(tokens) + len(tokens) // 2


def _same_as_pytorch(model: Path, adapter: Path, converted: Path, tokens: list[int]) -> bool:
    """Print the largest differences; whether all are within the bound."""
    import tempfile

    from rich.console import Console
    from rich.table import Table

    from specstream_mlx.adapters.torch_files import STREAM_CONFIG
    from specstream_mlx.convert.parity import BOUND, layer_differences, plain_differences
    from specstream_mlx.convert.to_mlx.adapter import adapter_name
    from specstream_mlx.convert.to_mlx.base import convert_base

    from ..terminal.progress import progress

    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        with progress("Converting the base to float32") as show:
            convert_base(model, base, dtype="float32", progress=show)
        paths = model, adapter, base, converted
        with progress("Comparing with PyTorch") as show:
            if (adapter / STREAM_CONFIG).exists():
                compared = _compared_on(model, adapter, tokens)
                differences = layer_differences(*paths, *compared, show)
            else:
                differences = plain_differences(*paths, tokens, show)
    title = f"{adapter_name(adapter)}: PyTorch and MLX, float32"
    table = Table("compared", "largest difference", "relative", title=title)
    for difference in differences:
        table.add_row(difference.name, f"{difference.largest:.2e}", f"{difference.relative:.2e}")
    Console().print(table)
    worst = max(difference.relative for difference in differences)
    within = worst <= BOUND
    note(f"largest relative difference {worst:.2e}, bound {BOUND:.0e}")
    return within
