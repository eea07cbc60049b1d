"""EAGLE-3 heads on the Hugging Face hub, by the model that each was trained for.

As of November 2026, from public text, since the hub was not in reach; where all digits are given,
they agree with the tensors that a head of such sizes has.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Base, its sizes, head, licence ('-': none was found), bytes; above each, where that is said.
_TABLE = """
# Base and head: the table in SafeAILab/EAGLE's README. Bytes: notes on the head's files in a port
# of vLLM ('pytorch_model.bin 274,132,734 B').
Qwen/Qwen3-1.7B  qwen3 2048 28 151936  AngelSlim/Qwen3-1.7B_eagle3  -  274_132_734
# Base and head: the same table. Bytes: a test of a model catalog (weight_bytes=436_899_680); an
# audit of revision fd331e5 has the shapes, which come to that.
Qwen/Qwen3-4B  qwen3 2560 36 151936  AngelSlim/Qwen3-4B_eagle3  -  436_899_680
# Base and head: vllm-project/speculators' README. Licence: a benchmark that runs it ('Apache-2.0,
# ungated, revision 08610ff, 2.0 GB'). Bytes: draft_bytes in a search of serving configurations.
Qwen/Qwen3-8B  qwen3 4096 36 151936  RedHatAI/Qwen3-8B-speculator.eagle3  Apache-2.0  2_044_116_968
# Base and head: vllm-project/speculators' README. Bytes: the same search, for this and the next.
Qwen/Qwen3-14B  qwen3 5120 40 151936  RedHatAI/Qwen3-14B-speculator.eagle3  -  2_775_244_776
Qwen/Qwen3-32B  qwen3 5120 64 151936  RedHatAI/Qwen3-32B-speculator.eagle3  -  3_121_274_856
# Base and head: SafeAILab/EAGLE's README. Licence and '850 MB': the hub's list of its files.
meta-llama/Llama-3.1-8B-Instruct  llama 4096 32 128256  yuhuili/EAGLE3-LLaMA3.1-Instruct-8B  \
Apache-2.0  850_000_000
# Base: the head's card on the hub. Licence and '2.81 GB': the hub's list of its files.
meta-llama/Llama-3.3-70B-Instruct  llama 8192 80 128256  \
lmsys/SGLang-EAGLE3-Llama-3.3-70B-Instruct-SpecForge  MIT  2_810_000_000
# Base and head: SafeAILab/EAGLE's README. Licence and '1.28 GB': the hub's list of its files.
lmsys/vicuna-13b-v1.3  llama 5120 40 32000  yuhuili/EAGLE3-Vicuna1.3-13B  Apache-2.0  1_280_000_000
"""


@dataclass(frozen=True)
class PublishedHead:
    """A head in a repository; ``sizes``: its base's, see ``_SIZES``; ``size`` is in bytes."""

    base: str
    sizes: tuple[str | int, ...]
    repository: str
    licence: str | None
    size: int

    def __str__(self) -> str:
        size = f"{self.size / 1e9:.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:.0f} MB"
        return f"{self.repository} ({size}, {self.licence or 'licence not found: see its page'})"


def _row(line: str) -> PublishedHead:
    base, family, *sizes, repository, licence, size = line.split()
    known = None if licence == "-" else licence
    return PublishedHead(base, (family, *map(int, sizes)), repository, known, int(size))


PUBLISHED_HEADS = [_row(line) for line in _TABLE.splitlines() if line and line[0] != "#"]

_SIZES = "model_type", "hidden_size", "num_hidden_layers", "vocab_size"
_FORMAT = re.compile(
    r"([-_.](mlx|gguf|awq|gptq|dwq|hf|mixed|ud|quantized|dynamic|(fp|bf|f|int|g)\d+|\d+bits?|\d|\d{6}"
    r"|i?q\d\w*|w\d+a\d+|(mx|nv)fp\d+))*",
    re.ASCII,
)
"""The suffixes of the names of quantized and converted models."""


def head_for(model: Path, config: Mapping[str, Any]) -> PublishedHead | None:
    """Find the head for a model, in its directory and of its ``config.json``."""
    name = repository_of(model) or os.path.basename(os.path.abspath(model))
    return next((head for head in heads_of_size(config) if _names(head.base, name)), None)


def heads_of_size(config: Mapping[str, Any]) -> list[PublishedHead]:
    """List the heads for models of the same sizes, which may be other models."""
    sizes = tuple(config.get(name) for name in _SIZES)
    return [head for head in PUBLISHED_HEADS if head.sizes == sizes]


def repository_of(directory: Path) -> str | None:
    """Return the repository whose snapshot a directory of the Hugging Face cache is."""
    parts = [part for part in directory.parts if part.startswith("models--")]
    return parts[-1].removeprefix("models--").replace("--", "/", 1) if parts else None


def _names(base: str, name: str) -> bool:
    """Whether a repository's or directory's name says that it is a base, in some format."""
    expected, given = (text.split("/")[-1].lower().removeprefix("meta-") for text in (base, name))
    return given.startswith(expected) and _FORMAT.fullmatch(given[len(expected) :]) is not None
