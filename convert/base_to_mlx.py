"""A base model's Hugging Face directory to mlx-lm's format, optionally quantized."""

import contextlib
import io
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.utils import quantize_model, save

from specstream_mlx.base_model import read_model, read_tokenizer
from specstream_mlx.config import UserError

from .staging import staged_directory

DTYPES = ("float16", "bfloat16", "float32")


def convert_base(
    source: Path,
    target: Path,
    bits: int | None = None,
    group_size: int = 64,
    dtype: str | None = None,
) -> None:
    """Write ``source`` in MLX format to ``target``; mlx-lm's own functions do the work.

    Args:
        source: directory with ``config.json``, safetensors and tokenizer files.
        target: replaced if it exists.
        bits: 4 or 8 for affine quantization; ``None`` for none.
        group_size: 32, 64 or 128.
        dtype: of what is not quantized; ``None`` keeps the source's.

    Raises:
        UserError: the source cannot be read as a model.
    """
    if not source.is_dir():
        raise UserError(f"the model directory {source} does not exist")
    with staged_directory(target) as scratch:
        model, config = read_model(source)
        tokenizer = read_tokenizer(source, config)
        if dtype is not None:
            wanted = getattr(mx, dtype)
            model.update(
                tree_map(
                    lambda p: p.astype(wanted) if mx.issubdtype(p.dtype, mx.floating) else p,
                    model.parameters(),
                )
            )
        if bits is not None:
            with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints the bits per weight
                model, config = quantize_model(model, config, group_size, bits)
        save(scratch, source, model, tokenizer, config)
        (scratch / "README.md").unlink(missing_ok=True)  # mlx-lm's model card, for uploads
