"""The trainer of a small draft model: a base's first layers, which learn the base's answers.

    python -m specstream_mlx.convert.pytorch.draft_model_trainer --model BASE --num-layers 4 \\
        --data answers.jsonl --output OUT --epochs 1

Plain speculative decoding (arXiv 2211.17192) drafts with a second, smaller model, which must have
the base's vocabulary. Where no such model is published this makes one, for comparisons: by the same
answers, batches, schedule and optimizer as those of ``trainer`` and ``head_trainer``. Embedding and
LM head stay the base's. It writes ``OUT/model`` in Hugging Face's format, which ``specstream-mlx
convert --model`` takes, and the result ``generate --draft-model``; the log ``OUT/log.jsonl``; and
the checkpoint ``OUT/checkpoint.pt``, from which ``--resume`` continues.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
import torch
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from specstream_mlx.config import UserError
from specstream_mlx.files import MODEL_FILES, check_holds_only, read_json, staged_directory
from specstream_mlx.options import PATH, POSITIVE, choice, integer, option
from specstream_mlx.terminal.commands import program

from .load import is_quantized, load_base
from .lora_trainer import train_to_answer
from .training_run import OnStep, begin, training_device
from .training_settings import AnsweringSettings

_GENERATION = "generation_config.json"


@dataclass
class DraftModelSettings(AnsweringSettings):
    """The settings of a run that trains a draft model."""

    model: Path = option(..., PATH, "Directory of the base model in Hugging Face's format.")
    dtype: str = option(
        "float32", choice("float32"), "What the layers are held in, since they are trained."
    )
    num_layers: int = option(4, integer(1), "The base's first layers that it consists of.")
    learning_rate: float = option(
        3e-3, POSITIVE, "Peak of the learning rate. All of the layers learn anew: 1e-3 is too low."
    )


def first_layers(model_dir: Path, count: int) -> PreTrainedModel:
    """Load a base's embedding, first layers, final norm and LM head.

    Args:
        model_dir: the base's directory.
        count: of the layers.

    Raises:
        UserError: the base has no more layers, is quantized, or cannot be read.
    """
    config_file = model_dir / "config.json"
    if config_file.is_file() and is_quantized(read_json(config_file)):
        raise UserError(f"{model_dir} is quantized, expected weights that can be trained")
    causal_lm: Any = load_base(model_dir)
    config, decoder = causal_lm.config, causal_lm.get_decoder()
    if count >= config.num_hidden_layers:
        raise UserError(
            f"num_layers is {count}, expected less than the {config.num_hidden_layers} of the base"
        )
    decoder.layers = decoder.layers[:count]
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:count]
    return causal_lm


def trained_weights(causal_lm: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """The weights of layers and final norm, by name; all others are frozen."""
    causal_lm.requires_grad_(False)
    head = causal_lm.get_output_embeddings()
    tables = [m for m in causal_lm.modules() if isinstance(m, torch.nn.Embedding) or m is head]
    frozen = {id(weight) for table in tables for weight in table.parameters()}
    weights = {name: w for name, w in causal_lm.named_parameters() if id(w) not in frozen}
    for weight in weights.values():
        weight.requires_grad_(True)
    return weights


def train_draft_model(settings: DraftModelSettings, on_step: OnStep | None = None) -> Path:
    """Train a draft model and write it.

    Args:
        settings: the run's settings.
        on_step: see ``OnStep``.

    Returns:
        The model's directory, ``settings.output / "model"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    target = settings.output / "model"
    check_holds_only(target, MODEL_FILES, "a model's")
    begin(settings, target)
    causal_lm: Any = first_layers(settings.model, settings.num_layers)
    causal_lm.to(training_device())
    weights = trained_weights(causal_lm)
    parameters = sum(weight.numel() for weight in weights.values())
    train_to_answer(settings, causal_lm, weights, on_step, {"parameters": parameters})
    tokenizer = AutoTokenizer.from_pretrained(
        settings.model, local_files_only=True, trust_remote_code=False
    )
    # transformers refuses to write what it reads, such as a temperature beside greedy decoding.
    causal_lm.generation_config = GenerationConfig.from_model_config(causal_lm.config)
    with staged_directory(target) as scratch:
        causal_lm.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        if (settings.model / _GENERATION).exists():
            shutil.copyfile(settings.model / _GENERATION, scratch / _GENERATION)
    return target


def main(settings: DraftModelSettings) -> None:
    """Train a small draft model of a base's first layers."""
    print(train_draft_model(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
