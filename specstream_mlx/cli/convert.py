"""``specstream-mlx convert``."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..errors import UserError
from ..options import FLAG, PATH, TEXT, choice, each, integer, one_of, option
from ..terminal.notes import note

_SAMPLE = "The quick brown fox jumps over the lazy dog, and then it goes home to write about it."
_LONGEST = 1024  # tokens that are compared, however many keys streams select

_RECIPES = (
    *("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6"),
    *("embeddings_4_8", "msa_4_6", "msa_4_8"),
)
_GROUP_SIZE = 64
_NOT_OF_GGUF = (
    *("adapter_path", "draft_head", "bits", "quant_predicate", "num_msa_layers"),
    *("to_pytorch", "verify"),
)
_NOT_OF_A_HEAD = "adapter_path", "bits", "quant_predicate", "dtype", "to_pytorch", "verify"
_NOT_TO_PYTORCH = "bits", "quant_predicate", "dtype", "verify", "overwrite"


@dataclass(frozen=True)
class ConvertOptions:
    """The source and the form of a conversion."""

    PANEL: ClassVar[str] = "Options"

    model: str = option(
        ...,
        TEXT,
        "Base with safetensors: a directory, or a Hugging Face repository, which is downloaded "
        "unless it is in the cache. Or a GGUF file, whose blocks are repacked.",
        metavar="DIR|REPO|GGUF",
    )
    mlx_path: Path | None = option(None, PATH, "Where the result goes.", metavar="DIR")
    adapter_path: list[Path] | None = option(
        None,
        each("a list of directories", lambda value: isinstance(value, Path)),
        "An adapter: PEFT LoRA, mlx_lm LoRA, speculative_streaming files, or LoRA and "
        "streams. "
        "With it, the adapter is converted instead of the base. Given several times, each becomes "
        "a directory of its name in --mlx-path.",
        metavar="DIR",
    )
    draft_head: Path | None = option(
        None,
        PATH,
        "A published EAGLE-3 head for the base, in torch's files. With it, the head is converted "
        "instead of the base.",
        metavar="DIR",
    )
    bits: int | None = option(
        None, one_of(4, 8), "Quantize the base to so many bits per weight, 4 or 8."
    )
    quant_predicate: str | None = option(
        None,
        choice(*_RECIPES),
        "Quantize by a recipe, instead of --bits: mlx_lm's mixed_2_6, mixed_3_4, mixed_3_6 and "
        "mixed_4_6; embeddings_4_8, which keeps embeddings and head at 8 bits; or msa_4_6 and "
        "msa_4_8, which keep these and the MSA layers at 6 or 8.",
        metavar="RECIPE",
    )
    num_msa_layers: int | None = option(None, integer(1), "Top layers with streams, for msa_*.")
    group_size: int = option(
        _GROUP_SIZE, one_of(32, 64, 128), "Weights that share a scale: 32, 64 or 128."
    )
    dtype: str | None = option(
        None,
        choice("float16", "bfloat16", "float32"),
        "Of what is not quantized, and of a GGUF's scales. Default: as it is, and for a GGUF the "
        "smallest that holds all of it exactly.",
    )
    to_pytorch: Path | None = option(
        None,
        PATH,
        "Instead of --mlx-path: write the adapter of --adapter-path, which MLX has trained, as the "
        "PyTorch trainer and PEFT read it.",
        metavar="DIR",
    )
    verify: bool = option(
        False,
        FLAG,
        "Run sample text through PyTorch and MLX and print the largest differences, of each layer "
        "where the adapter has streams; needs the torch extra and --adapter-path.",
    )
    overwrite: bool = option(False, FLAG, "Replace the converted model or adapter at --mlx-path.")

    @property
    def is_gguf(self) -> bool:
        """True if the model is a GGUF file, or is called like one."""
        is_called_so = self.model.endswith(".gguf") and not os.path.isdir(self.model)
        return is_called_so or os.path.isfile(self.model)

    def __post_init__(self) -> None:
        for name in _NOT_OF_GGUF if self.is_gguf else ():
            if getattr(self, name):
                raise UserError(
                    f"--{name.replace('_', '-')} was given with the file {self.model}, expected it "
                    "with a directory: convert the GGUF first, without it"
                )
        if self.to_pytorch is not None:
            if self.mlx_path is not None:
                raise UserError("--mlx-path and --to-pytorch were both given, expected one of them")
            if not self.adapter_path or len(self.adapter_path) > 1:
                raise UserError("--to-pytorch converts one adapter, expected one --adapter-path")
            for name in _NOT_TO_PYTORCH:
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise UserError(f"{flag} and --to-pytorch were both given, expected one")
        elif self.mlx_path is None:
            raise UserError("--mlx-path is missing, expected where the result goes")
        for name in _NOT_OF_A_HEAD if self.draft_head is not None else ():
            if getattr(self, name):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} and --draft-head were both given, expected one of them")
        if self.adapter_path and (self.bits or self.quant_predicate):
            given = "--bits" if self.bits else "--quant-predicate"
            raise UserError(
                f"{given} quantizes a base, --adapter-path converts an adapter: give one"
            )
        if self.bits and self.quant_predicate:
            raise UserError("--bits and --quant-predicate were both given, expected at most one")
        if self.group_size != _GROUP_SIZE and not (self.bits or self.quant_predicate):
            raise UserError("--group-size was given, expected with --bits or --quant-predicate")
        if self.num_msa_layers and not self.quant_predicate:
            raise UserError("--num-msa-layers belongs to --quant-predicate, which was not given")
        if self.verify and not self.adapter_path:
            raise UserError("--verify compares adapters: it needs --adapter-path")


def convert(*, options: ConvertOptions) -> None:
    r"""Convert a base model or an adapter from PyTorch to MLX.

    Examples:

    A base, quantized to 4 bits:

        specstream-mlx convert --model hf-llama --mlx-path llama-4bit --bits 4

    With what the streams of the 4 top layers rest on at 8 bits:

        specstream-mlx convert --model hf-llama --mlx-path llama-mixed \
            --quant-predicate msa_4_8 --num-msa-layers 4

    A GGUF file, its blocks as they are:

        specstream-mlx convert --model SmolLM2-135M-Instruct.Q4_1.gguf \
            --mlx-path smollm2

    An adapter for it, compared with PyTorch:

        specstream-mlx convert --model hf-llama --adapter-path runs/streams/adapter \
            --mlx-path llama-streams --verify

    Two at once, to adapters/sql and adapters/summarize:

        specstream-mlx convert --model hf-llama --adapter-path sql --adapter-path summarize \
            --mlx-path adapters

    A draft head, for generate --draft-head:

        specstream-mlx convert --model hf-llama --draft-head eagle3-llama \
            --mlx-path llama-eagle3

    An adapter that was trained in MLX, for PyTorch:

        specstream-mlx convert --model hf-llama --adapter-path llama-streams \
            --to-pytorch torch-streams
    """
    target, adapters = options.mlx_path, options.adapter_path or []
    if options.to_pytorch is not None:
        _to_pytorch(options.model, adapters[0], options.to_pytorch)
    elif target is not None and options.is_gguf:
        _from_gguf(options, target)
    elif target is not None and options.draft_head is not None:
        _draft_head(options, options.draft_head, target)
    elif target is not None:
        _to_mlx(options, target, adapters)


def _to_pytorch(model: str, adapter: Path, target: Path) -> None:
    """Convert one adapter back."""
    from specstream_mlx.convert.to_pytorch import convert_to_pytorch

    from ..loading import model_directory

    convert_to_pytorch(adapter, model_directory(model), target)
    note(f"wrote {target}")


def _from_gguf(options: ConvertOptions, target: Path) -> None:
    """Convert a GGUF file and say what became of its types."""
    from specstream_mlx.convert.to_mlx.gguf import convert_gguf

    from ..terminal.progress import progress

    file, overwrite = Path(options.model), options.overwrite
    with progress("Converting") as show:
        report = convert_gguf(file, target, options.dtype, show, overwrite=overwrite)
    for held in report.types:
        note(str(held))
    if report.obstacle is not None:
        note(
            f"scales and dense tensors are float32, since {report.obstacle} does not fit float16 "
            "exactly; with --dtype float16 they are rounded to it"
        )
    note(f"wrote {target}")


def _draft_head(options: ConvertOptions, source: Path, target: Path) -> None:
    """Convert a draft head and say what it is."""
    from specstream_mlx.convert.to_mlx.draft_head import convert_head

    from ..loading import model_directory

    base = model_directory(options.model)
    mounted = convert_head(source, base, target, overwrite=options.overwrite)
    head, reads = mounted.config, map(str, mounted.boundaries)
    note(f"{head.kind}: {head.parameters:,} parameters, to depth {head.num_streams}")
    note(f"it reads the hidden states that go into layers {', '.join(reads)}")
    note(f"wrote {target}")


def _to_mlx(options: ConvertOptions, target: Path, adapters: list[Path]) -> None:
    """Convert a base, or adapters for it; exits with 1 if PyTorch computes something else."""
    from specstream_mlx.convert.to_mlx.adapter import convert_adapter, convert_adapters
    from specstream_mlx.convert.to_mlx.base import convert_base
    from specstream_mlx.convert.to_mlx.overwrite import check_new
    from specstream_mlx.convert.to_mlx.recipes import Quantization

    from ..loading import model_directory
    from ..terminal.progress import progress

    dtype, overwrite = options.dtype, options.overwrite
    if not overwrite:
        check_new(target)
    base = model_directory(options.model)
    tokens, written = _sample_tokens(base) if options.verify else [], [target]
    quantization = Quantization(
        options.bits, options.group_size, options.quant_predicate, options.num_msa_layers
    )
    if not adapters:
        with progress("Converting") as show:
            convert_base(base, target, quantization, dtype, show, overwrite=overwrite)
    elif len(adapters) == 1:
        convert_adapter(adapters[0], base, target, dtype, overwrite=overwrite)
    else:
        written = convert_adapters(adapters, base, target, dtype, overwrite=overwrite)
    for path in written:
        note(f"wrote {path}")
    pairs = zip(adapters, written, strict=True) if options.verify else ()
    if not all([_same_as_pytorch(base, *pair, tokens) for pair in pairs]):
        raise SystemExit(1)


def _sample_tokens(model: Path) -> list[int]:
    """Return the token ids that ``--verify`` runs; done before anything is written."""
    try:
        from specstream_mlx.convert import parity  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"--verify needs {error.name}: pip install 'specstream-mlx[torch]'"
        ) from None
    from ..files import check_tokens
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
    if streams is not None and (few := streams.stream_keys):
        context = read_config(model).get("max_position_embeddings") or _LONGEST
        count = max(count, min(count + few, context, _LONGEST))
    return list(islice(cycle(tokens), count)), count - len(tokens) + len(tokens) // 2


def _same_as_pytorch(model: Path, adapter: Path, converted: Path, tokens: list[int]) -> bool:
    """Print the largest differences; whether all are within the bound."""
    import tempfile

    from rich.console import Console
    from rich.table import Table

    from specstream_mlx.adapters.torch_files import STREAM_CONFIG
    from specstream_mlx.convert.parity import BOUND, Converted, layer_differences, plain_differences
    from specstream_mlx.convert.to_mlx.adapter import adapter_name
    from specstream_mlx.convert.to_mlx.base import convert_base

    from ..terminal.progress import progress

    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        with progress("Converting the base to float32") as show:
            convert_base(model, base, dtype="float32", progress=show)
        both = Converted(model, adapter, base, converted)
        with progress("Comparing with PyTorch") as show:
            if (adapter / STREAM_CONFIG).exists():
                compared = _compared_on(model, adapter, tokens)
                differences = layer_differences(both, *compared, show)
            else:
                differences = plain_differences(both, tokens, show)
    title = f"{adapter_name(adapter)}: PyTorch and MLX, float32"
    table = Table("compared", "largest difference", "relative", title=title)
    for difference in differences:
        table.add_row(difference.name, f"{difference.largest:.2e}", f"{difference.relative:.2e}")
    Console().print(table)
    worst = max(difference.relative for difference in differences)
    within = worst <= BOUND
    note(f"largest relative difference {worst:.2e}, bound {BOUND:.0e}")
    return within
