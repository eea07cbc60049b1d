"""``specstream-mlx train``."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ..demonstration import model_path
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
from ..terminal.progress import progress
from ..train.settings import TrainSettings
from .options import ModelOptions

if TYPE_CHECKING:
    from ..train.distil import Answering
    from ..train.run import TrainingRun
    from ..train.start import Start

_IGNORED = {"train": True, "test": False, "fine_tune_type": "lora", "mask_prompt": True}
_IGNORED |= {"trust_remote_code": False}
"""Settings of mlx_lm.lora, each with the one value that it may have here."""
_WITHOUT_MEANING = ("test_batches", "config", "project_name")

_SELF = "self"
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
        False, FLAG, "Only write the answers, to DIR.training/data, for another trainer."
    )


_NO_MODEL = "--model is missing, expected the base to train streams for"

_flag = partial(option, False, FLAG, panel="Reports, validation, checkpoints")


def train(
    *,
    settings: Annotated[dict[str, Any], TrainSettings],
    answers: Annotated[dict[str, Any], AnswerOptions],
    config: Path | None = option(
        None, FILE, "YAML of settings, as mlx_lm's.", "--config", "-c", panel="Model and data"
    ),
    estimate: bool = _flag("Only estimate time, memory and disk space; write nothing."),
    no_outcome: bool = _flag("Skip the speed comparison at the end."),
) -> None:
    r"""Train streams for a model, on this machine.

    The base answers prompts, and its streams are trained on the answers. The time that this takes
    is printed first, and the speedup on this machine last. Flags are those of mlx_lm.lora.

    Examples:

    Lossless streams for a model, from its own answers:

        specstream-mlx train --model my-4bit-model --adapter-path streams

    The same for a model with a LoRA, which stays as it is; the new adapter has both:

        specstream-mlx train --model my-4bit-model --init-adapter my-lora \
            --adapter-path my-adapter

    An adapter for one application, from your own data:

        specstream-mlx train --model my-4bit-model --mode shared --data tickets
    """
    if "model" in settings:
        ModelOptions(settings["model"]).check()
    elif config is None:
        raise UserError(_NO_MODEL)
    prompts_file = answers.get("prompts", _SELF)
    if prompts_file != _SELF and not Path(prompts_file).exists():
        raise UserError(f"{prompts_file} is missing")
    from ..loading.load import load
    from ..train.outcome import measure, texts_of
    from ..train.run import run_directory
    from ..train.start import start_of

    checked, answering = _settings(settings, answers, config)
    directory = run_directory(checked.adapter_path)
    _check_place(checked, directory)
    prompts = None
    if checked.data is None:
        data, prompts = directory / "data", _prompts(answering, directory)
    else:
        data = Path(checked.data)
        if not data.is_dir():
            problem = "is a file" if data.exists() else "does not exist"
            raise UserError(f"{data} {problem}, expected a directory with train.jsonl in it")
    place = model_path(checked.model, note)
    if estimate:
        note("Measuring what the run will take here, on a little of each stage's work")
    start = start_of(checked, *load(place))
    if prompts is not None:
        prompts = _that_fit(start, checked, prompts)
    run = _estimated(start, checked, answering, prompts, data, no_outcome)
    if estimate:
        return
    if checked.data is None:
        _answers(start, checked, answering, prompts, data)
    if answering.answers_only:
        print(data)
        return
    run = run or _run(start, checked, data)
    if run.is_finished:
        note(f"The run is at its end, after {run.progress.iterations} iterations")
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
    if run.valid and not no_outcome:
        start.base.swap_adapter(adapter)
        try:
            with progress("Comparing on held-out texts") as show:
                note(measure(start.base, start.tokenizer, texts_of(run.valid), show))
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
        raise UserError(_NO_MODEL)
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
    """Check that only the adapter of a resumed run is overwritten."""
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


def _prompts(answers: AnswerOptions, directory: Path) -> list[str] | None:
    """Read the prompts; ``None``: the base has not drawn all of them yet."""
    from ..train.distil import SHIPPED, read_prompts

    if answers.prompts != _SELF:
        return read_prompts(SHIPPED if answers.prompts is None else Path(answers.prompts))
    drawn = directory / "prompts.jsonl"
    if not drawn.exists() or drawn.read_bytes().count(b"\n") < answers.num_prompts:
        return None
    return read_prompts(drawn)[: answers.num_prompts]


def _that_fit(start: "Start", settings: TrainSettings, prompts: list[str]) -> list[str]:
    """Leave out prompts after which the base has no room for an answer."""
    from ..models.architectures import context_length
    from ..prompts import chat_prompt

    template, most = start.streams.config.prompt_template, settings.max_seq_length
    most = min(most, context_length(start.base.config) or most)
    lengths = (len(chat_prompt(start.tokenizer, prompt, template)) for prompt in prompts)
    fit = [prompt for prompt, length in zip(prompts, lengths, strict=True) if length < most]
    if len(fit) < len(prompts):
        note(
            f"{len(prompts) - len(fit)} of {len(prompts)} prompts leave no room for an answer "
            "and are left out"
        )
    return fit


def _how(start: "Start", settings: TrainSettings, answers: AnswerOptions) -> "Answering":
    from ..train.distil import Answering

    template, lora = start.streams.config.prompt_template, start.frozen_lora
    most, temp = answers.max_tokens, answers.temp
    return Answering(most, temp, seed=settings.seed, template=template, lora=lora)


def _estimated(
    start: "Start",
    settings: TrainSettings,
    answers: AnswerOptions,
    prompts: list[str] | None,
    data: Path,
    no_outcome: bool,
) -> "TrainingRun | None":
    """Print the cost of everything that is left to do; returns the run if its data exist."""
    from ..train.distil import SHIPPED, answers_left, held_out, read_prompts
    from ..train.estimate import Estimate
    from ..train.run import TrainingRun

    run, left, count, how = None, 0, 0, _how(start, settings, answers)
    if settings.data is None:
        count = left = answers.num_prompts
        if prompts is not None:
            count, left = len(prompts), answers_left(prompts, data, how)
    if not left and not answers.answers_only:
        run = _run(start, settings, data)
    with progress("Estimating"):
        estimate = Estimate(start)
        if left:
            if prompts is None:
                estimate.draws(count)
            items = estimate.answers(prompts or read_prompts(SHIPPED), count, left, how)
        if not answers.answers_only:
            planned = run or TrainingRun(settings, start, items, list(held_out(items)))
            if not planned.is_finished:
                estimate.training(planned)
            if planned.valid and not no_outcome:
                estimate.comparison(planned.valid)
    if estimate.parts:
        for line in estimate.lines():
            note(line)
        estimate.check(settings.adapter_path)
    return run


def _answers(
    start: "Start",
    settings: TrainSettings,
    answers: AnswerOptions,
    prompts: list[str] | None,
    data: Path,
) -> None:
    """Let the base answer prompts, its own if there are none."""
    from ..train.distil import answers_left, distil
    from ..train.self_prompts import draw_prompts

    base, tokenizer, how = start.base, start.tokenizer, _how(start, settings, answers)
    try:
        if answers.prompts == _SELF:
            with progress("The base draws prompts") as show:
                wanted = answers.num_prompts, how, answers.prompt_script, show
                drawn = draw_prompts(base, tokenizer, data.parent, *wanted)
            prompts, sentence = _that_fit(start, settings, drawn[0]), drawn[1]
            if sentence:
                note(sentence)
        prompts = prompts or []
        if left := answers_left(prompts, data, how):
            note(f"The base answers {left} prompts")
        with progress("The base answers prompts") as show:
            distil(base, tokenizer, prompts, data, how, show)
    except KeyboardInterrupt:
        note("Stopped; the same command goes on with what is there")
        raise


def _run(start: "Start", settings: TrainSettings, data: Path) -> "TrainingRun":
    """Make the run of a directory's data, from its last checkpoint if it resumes."""
    from ..train.data import read_split
    from ..train.run import TrainingRun

    template = start.streams.config.prompt_template
    further = settings.max_seq_length, start.base.config["vocab_size"], template
    training, valid = read_split(data / "train.jsonl", start.tokenizer, *further), None
    if os.path.lexists(data / "valid.jsonl"):
        valid = read_split(data / "valid.jsonl", start.tokenizer, *further)
    else:
        note(f"{data} has no valid.jsonl: the last state is taken, and what it brings not measured")
    run = TrainingRun(settings, start, training, valid)
    if settings.resume:
        run.restore(run.last)
    return run


def _iterate(run: "TrainingRun") -> None:
    """Run it, and print a line for every report."""
    from mlx_lm.tuner.callbacks import TrainingCallback

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
            show(done, total, f"Training, loss {train_info['train_loss']:.3f}")

        def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
            accuracy = " ".join(f"{share:.2f}" for share in val_info["accuracy"][1:])
            note(
                f"Iter {val_info['iteration']}: Val loss {val_info['val_loss']:.3f}, "
                f"Val took {val_info['val_time']:.1f}s, "
                f"accepted length {val_info['accepted_length']:.2f}, streams right {accuracy}"
            )

    def stops() -> bool:
        show(run.progress.iterations, run.settings.iters)
        return pressed()

    with noted_interrupt() as pressed, progress("Training") as show:
        ended = run.iterate(Lines(), stops)
    if pressed() or not ended:  # pressed in the last iteration, it still asks for an end
        note(f"Stopped after {run.progress.iterations} iterations; --resume goes on")
        raise KeyboardInterrupt
