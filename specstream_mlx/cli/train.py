"""``specstream-mlx train``."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ..errors import UserError, shown
from ..files import read_text, reason
from ..options import (
    FILE,
    FLAG,
    PATH,
    TEXT,
    check_options,
    choice,
    integer,
    kinds_of,
    number,
    option,
)
from ..terminal.errors import noted_interrupt
from ..terminal.notes import note
from ..train.settings import TrainSettings

if TYPE_CHECKING:
    from ..train.run import Run
    from ..train.start import Start

_IGNORED = {"train": True, "test": False, "fine_tune_type": "lora", "mask_prompt": True}
_IGNORED |= {"trust_remote_code": False}
"""Settings of mlx_lm.lora, each with the one value that it may have here."""
_WITHOUT_MEANING = ("test_batches", "config", "project_name")

_SELF = "self"
_HELD_OUT_TEXTS = 6
_LEARNED = 1.05  # tokens a step of streams that have begun to learn; without any it is 1


@dataclass(frozen=True)
class AnswerOptions:
    """The base's own answers, trained on where there is no --data."""

    PANEL: ClassVar[str] = "The base's own answers, without --data"

    prompts: str | None = option(
        None,
        TEXT,
        "A prompt a line, or JSONL; self: the base draws them. Default: 400 of general use.",
        metavar="FILE|self",
    )
    num_prompts: int = option(400, integer(2), "How many, with --prompts self.")
    prompt_script: Literal["latin", "any"] = option(
        "latin", choice("latin", "any"), "With --prompts self: which letters they may have."
    )
    max_tokens: int = option(256, integer(1), "The most tokens of an answer.")
    temp: float = option(0.0, number(0), "Temperature; 0 (default): the likeliest answer.")
    answers_only: bool = option(
        False, FLAG, "Write the answers to DIR.training/data and end there, for another trainer."
    )


_flag = partial(option, False, FLAG, panel="Reports, validation, checkpoints")


def train(
    *,
    settings: Annotated[dict[str, Any], TrainSettings],
    answers: Annotated[dict[str, Any], AnswerOptions],
    config: Path | None = option(
        None, FILE, "YAML of settings, as mlx_lm's.", "--config", "-c", panel="Model and data"
    ),
    estimate: bool = _flag("Only say what the run would take."),
    no_outcome: bool = _flag("Do not measure at the end what it won."),
) -> None:
    r"""Train streams for a model, on this machine.

    The base answers prompts, its streams learn to foresee such text, and at the end it is measured
    what that brings. Flags are those of mlx_lm.lora.

    Examples:

    Lossless streams for a model, from its own answers:

        specstream-mlx train --model my-4bit-model --adapter-path streams

    The same for a model with a LoRA, which stays as it is; the new adapter has both:

        specstream-mlx train --model my-4bit-model --init-adapter my-lora \
            --adapter-path my-adapter

    An adapter for one application, from data of yours:

        specstream-mlx train --model my-4bit-model --mode shared --data tickets
    """
    from ..demonstration import model_path
    from ..loading import load
    from ..terminal.progress import progress
    from ..train.data import read_split
    from ..train.distil import SHIPPED, read_prompts
    from ..train.outcome import measure
    from ..train.run import Run, run_directory
    from ..train.start import start_of

    checked, answering = _settings(settings, answers, config)
    directory = run_directory(checked.adapter_path)
    _check_place(checked, directory)
    prompts: list[str] | None = None
    if checked.data is not None:
        data = Path(checked.data)
        if not data.is_dir():
            found = "is a file" if data.exists() else "does not exist"
            raise UserError(f"{data} {found}, expected a directory with train.jsonl in it")
    elif answering.prompts != _SELF:
        prompts = read_prompts(SHIPPED if answering.prompts is None else Path(answering.prompts))
    start = start_of(checked, *load(model_path(checked.model, note)))
    if checked.data is None:
        data = _answers(start, checked, directory, answering, prompts)
    if answering.answers_only:
        print(data)
        return
    limits = checked.max_seq_length, start.base.config["vocab_size"]
    further = *limits, start.streams.config.prompt_template
    training, valid = read_split(data / "train.jsonl", start.tokenizer, *further), None
    if (data / "valid.jsonl").exists():
        valid = read_split(data / "valid.jsonl", start.tokenizer, *further)
    else:
        note(f"{data} has no valid.jsonl: the last state is taken, and what it brings not measured")
    run = Run(checked, start, training, valid)
    if checked.resume:
        run.restore(run.last)
    if run.is_finished:
        note(f"The run is at its end, after {run.progress.iterations} iterations")
    else:
        note(f"Training {run.estimate()}")
    if estimate:
        return
    _iterate(run)
    adapter = run.write_adapter()
    iterations, accepted = run.progress.best_iteration, run.progress.best_length
    if accepted is not None:
        note(
            f"The adapter is the state after {iterations} iterations, whose accepted length was "
            f"the longest, {accepted:.2f}"
        )
        if accepted < _LEARNED:
            note(
                "Its streams have learned next to nothing: more iterations, more data, or a "
                "smaller --learning-rate may help"
            )
    if valid is not None and not no_outcome:
        start.base.swap_adapter(adapter)
        held_out = [item.tokens[: item.stream_from] for item in valid[:_HELD_OUT_TEXTS]]
        try:
            with progress("Decoding held-out texts") as show:
                note(measure(start.base, start.tokenizer, held_out, show=show))
        except KeyboardInterrupt:
            note(f"Stopped; {adapter} is complete, and --resume compares it again")
            raise
    print(adapter)


def _settings(
    settings: dict[str, Any], answers: dict[str, Any], path: Path | None
) -> tuple[TrainSettings, AnswerOptions]:
    """The flags over the configuration file, checked."""
    from ..train.optimizer import check_optimizer

    values = (_read_config(path) if path else {}) | settings | answers
    if "model" not in values:
        raise UserError("--model is missing, expected the base to train streams for")
    asked = {name: values.pop(name) for name in kinds_of(AnswerOptions) if name in values}
    checked = TrainSettings(**values)
    checked.check()
    check_optimizer(checked)
    answering = AnswerOptions(**asked)
    check_options(answering)
    for name in asked:
        flag = f"--{name.replace('_', '-')}"
        if answering.prompts != _SELF and name in ("num_prompts", "prompt_script"):
            raise UserError(f"{flag} was given without --prompts {_SELF}")
        if checked.data is not None:
            raise UserError(f"--data and {flag} were both given, expected at most one")
    return checked, answering


def _read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file like mlx_lm's; ``null`` leaves a setting unset."""
    import yaml
    from mlx_lm.lora import yaml_loader

    text = read_text(path)
    try:
        values = yaml.load(text, yaml_loader)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply, expected settings by name") from None
    except (yaml.YAMLError, ValueError) as error:  # this of a date that does not exist
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}," if mark else ""
        raise UserError(f"{path}{place} is not valid YAML: {reason(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {shown(values)}, expected settings by name")
    values = {name: value for name, value in values.items() if value is not None}
    for name in _WITHOUT_MEANING:
        values.pop(name, None)
    for name, expected in _IGNORED.items():
        if (value := values.pop(name, expected)) != expected:
            raise UserError(f"{path}: {name} is {shown(value)}, expected {expected}")
    known = kinds_of(TrainSettings, AnswerOptions)
    for name in (name for name in values if name not in known):
        raise UserError(f"{path} has {shown(name)}, which is no setting of train")
    for name, field in TrainSettings.__dataclass_fields__.items():
        if name in values and field.type in (Path, Path | None):
            PATH.check(f"{path}: {name}", values[name])
            values[name] = Path(values[name])
    return values


def _check_place(settings: TrainSettings, directory: Path) -> None:
    """Check that nothing is overwritten but the adapter of a run that is resumed."""
    from ..train.run import is_adapter, last_checkpoint

    target, begun = settings.adapter_path, last_checkpoint(directory).exists()
    if target.exists() and not (settings.resume and is_adapter(target)):
        more = ", or --resume to go on with its run" if begun and is_adapter(target) else ""
        raise UserError(f"{target} exists already, expected a new --adapter-path{more}")
    if begun and not settings.resume:
        raise UserError(
            f"{directory} holds an earlier run, expected --resume to go on with it or another "
            "--adapter-path"
        )
    if settings.resume and not begun:
        raise UserError(
            f"{directory} holds no checkpoint to resume from; without --resume a run begins, with "
            "the answers that are there"
        )


def _answers(
    start: "Start",
    settings: TrainSettings,
    directory: Path,
    answers: AnswerOptions,
    prompts: list[str] | None,
) -> Path:
    """Let the base answer prompts, its own if there are none."""
    from ..models.architectures import context_length
    from ..prompts import chat_prompt
    from ..terminal.progress import progress
    from ..train.distil import distil
    from ..train.self_prompts import draw_prompts

    base, tokenizer, template = start.base, start.tokenizer, start.streams.config.prompt_template
    data = directory / "data"
    common: Any = {"seed": settings.seed, "template": template, "lora": start.frozen_lora}
    try:
        if prompts is None:
            note(f"The base draws {answers.num_prompts} prompts")
            with progress("The base draws prompts") as show:
                wanted: Any = {"script": answers.prompt_script, "show": show, **common}
                count = answers.num_prompts
                prompts, sentence = draw_prompts(base, tokenizer, directory, count, **wanted)
            if sentence:
                note(sentence)
        most = min(settings.max_seq_length, context_length(base.config) or settings.max_seq_length)
        fit = [one for one in prompts if len(chat_prompt(tokenizer, one, template)) < most]
        if len(fit) < len(prompts):
            note(
                f"{len(prompts) - len(fit)} of {len(prompts)} prompts leave no room for an answer "
                "and are left out"
            )
        note(f"The base answers {len(fit)} prompts")
        with progress("The base answers prompts") as show:
            common |= {"max_tokens": answers.max_tokens, "temp": answers.temp}
            distil(base, tokenizer, fit, data, show=show, **common)
    except KeyboardInterrupt:
        note("Stopped; the same command goes on with what is there")
        raise
    return data


def _iterate(run: "Run") -> None:
    """Run it with a line for every report."""
    from mlx_lm.tuner.callbacks import TrainingCallback

    from ..terminal.progress import progress
    from ..train.run import duration

    class Lines(TrainingCallback):
        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            done, total = train_info["iteration"], run.settings.iters
            left = (total - done) / train_info["iterations_per_second"]
            note(
                f"Iter {done}: Train loss {train_info['train_loss']:.3f}, "
                f"It/sec {train_info['iterations_per_second']:.3f}, "
                f"Tokens/sec {train_info['tokens_per_second']:.0f}, "
                f"Peak mem {train_info['peak_memory']:.2f} GB, {duration(left)} left"
            )
            show(done, total, f"loss {train_info['train_loss']:.3f}")

        def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
            accuracy = " ".join(f"{share:.2f}" for share in val_info["accuracy"][1:])
            note(
                f"Iter {val_info['iteration']}: Val loss {val_info['val_loss']:.3f}, "
                f"Val took {val_info['val_time']:.1f}s, "
                f"accepted length {val_info['accepted_length']:.2f}, streams right {accuracy}"
            )

    with noted_interrupt() as stops, progress("Training") as show:
        ended = run.iterate(Lines(), stops)
    if not ended:
        note(f"Stopped after {run.progress.iterations} iterations; --resume goes on")
        raise KeyboardInterrupt
