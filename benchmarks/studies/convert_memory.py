"""Peak memory of converting a base: at most 1.5 times its largest file and 1 GiB are allowed.

    python -m benchmarks.studies.convert_memory --size 1.1B --bits 4
    python -m benchmarks.studies.convert_memory --size 200M

Random weights in several files are written to a temporary directory. The conversion runs in a
process of its own, and its peak resident memory, Python and MLX included, is what counts. It exits
with 1 where that is above the bound.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import typer
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import Quantization
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from specstream_mlx.options.fields import option
from specstream_mlx.options.kinds import choice, integer
from specstream_mlx.terminal.commands import program

from ..own_process import in_own_process, peak_bytes

GIB = 1 << 30
SHAPES = {  # hidden_size, layers, heads, MLP; 1.1B is TinyLlama's
    "20M": (256, 8, 4, 704),
    "100M": (768, 12, 12, 2048),
    "200M": (1024, 14, 16, 2816),
    "1.1B": (2048, 22, 32, 5632),
}

SIZE = option("1.1B", choice(*SHAPES), "Parameters.")
"""``--size``, a key of ``SHAPES``."""


def config(size: str) -> dict[str, Any]:
    """A Llama ``config.json``."""
    hidden, layers, heads, mlp = SHAPES[size]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "intermediate_size": mlp,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def make_model(path: str, size: str, dtype: str, file_bytes: int) -> None:
    """Write a Hugging Face directory with random weights.

    Args:
        path: of the directory, which is made.
        size: a key of ``SHAPES``.
        dtype: MLX's name of that of the weights.
        file_bytes: largest file.
    """
    directory, values = Path(path), config(size)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(values))
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(directory)
    files: list[dict[str, mx.array]] = [{}]
    held = 0
    flat = dict(tree_flatten(Model(ModelArgs.from_dict(values)).parameters()))
    for name, parameter in flat.items():
        tensor = mx.random.normal(parameter.shape, getattr(mx, dtype), scale=0.02)
        if held + tensor.nbytes > file_bytes and files[-1]:
            files.append({})
            held = 0
        files[-1][name] = tensor
        held += tensor.nbytes
    places: dict[str, str] = {}
    for number in range(len(files)):
        name = f"model-{number + 1:05d}-of-{len(files):05d}.safetensors"
        places |= dict.fromkeys(files[number], name)
        mx.save_safetensors(str(directory / name), files[number], {"format": "pt"})
        files[number] = {}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def convert_measured(source: str, target: str, bits: int | None) -> dict[str, float]:
    """Convert in this process: peak memory before and after, and seconds."""
    before, began = peak_bytes(), time.perf_counter()
    convert_base(Path(source), Path(target), Quantization(bits))
    return {"before": before, "peak": peak_bytes(), "seconds": time.perf_counter() - began}


def main(
    size: str = SIZE,
    bits: Literal["4", "8"] | None = option(None, choice("4", "8"), "Quantize to so many."),
    dtype: Literal["bfloat16", "float16", "float32"] = option(
        "bfloat16", choice("bfloat16", "float16", "float32"), "Of the made weights."
    ),
    file_mb: int = option(1000, integer(1), "Largest file, MB."),
) -> None:
    """Measure the peak memory of a conversion."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "source", Path(scratch) / "mlx"
        in_own_process(make_model, source, size, dtype, file_mb * 1_000_000)
        result = in_own_process(convert_measured, source, target, int(bits) if bits else None)
        sizes = [file.stat().st_size for file in source.glob("*.safetensors")]
    bound = 1.5 * max(sizes) + GIB
    print(f"{size} {dtype}, {len(sizes)} files of at most {max(sizes) / 1e6:.0f} MB")
    print(f"converted to {bits + ' bits' if bits else dtype} in {result['seconds']:.0f} s")
    print(f"peak {result['peak'] / 1e6:.0f} MB, {result['before'] / 1e6:.0f} MB of it the imports")
    print(f"bound {bound / 1e6:.0f} MB: {'kept' if result['peak'] <= bound else 'EXCEEDED'}")
    if result["peak"] > bound:
        raise typer.Exit(1)


if __name__ == "__main__":
    program(main)()
