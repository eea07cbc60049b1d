"""The trainer of LoRA alone, as ``mlx_lm.lora`` and PEFT's users train it.

    python -m specstream_mlx.convert.pytorch.lora_trainer --model BASE --data train.jsonl \\
        --output OUT --epochs 1

Lossless streams can be trained for the result, whose text they leave as it is:

    python -m specstream_mlx.convert.pytorch.trainer --model BASE --data train.jsonl \\
        --mode lossless --init-adapter OUT/adapter --output STREAMS

It writes ``OUT/adapter`` in PEFT's format, the log ``OUT/log.jsonl`` and the checkpoint
``OUT/checkpoint.pt``, from which ``--resume`` continues.
"""

from pathlib import Path

from .required_packages import import_or_exit

if __name__ == "__main__":
    import_or_exit()
from specstream_mlx.terminal.commands import program

from .adapter_files import check_adapter_replaceable, write_lora
from .answering_model import train_to_answer
from .load import load_base, put_lora
from .lora_settings import LoraSettings
from .training_run import OnStep, begin, training_device


def train_lora(settings: LoraSettings, on_step: OnStep | None = None) -> Path:
    """Train LoRA and write it.

    Args:
        settings: the run's settings.
        on_step: see ``OnStep``.

    Returns:
        The adapter directory, ``settings.output / "adapter"``.

    Raises:
        UserError: a setting is out of range or does not fit the base, a file cannot be read or
            written, or the output holds an earlier run that is not resumed.
    """
    settings.check()
    adapter = settings.output / "adapter"
    check_adapter_replaceable(adapter)
    begin(settings, adapter)
    base = put_lora(load_base(settings.model, settings.dtype), settings).to(training_device())
    weights = {name: p for name, p in base.named_parameters() if p.requires_grad}
    train_to_answer(settings, base.get_base_model(), weights, on_step)
    write_lora(base, adapter)
    return adapter


def main(settings: LoraSettings) -> None:
    """Train LoRA on a language model, without streams."""
    print(train_lora(settings))


if __name__ == "__main__":
    program(main, hidden=True)()
