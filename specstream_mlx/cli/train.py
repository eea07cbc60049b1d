"""``specstream-mlx train``."""

import signal
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from ..checked_files import read_text, reason
from ..config import UserError, check_integer, is_number, shown
from ..terminal.notes import note
from ..terminal.parsing import at_least, positive
from .chart import chart
from .groups import grouped

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..loading import SpeculativeModel
    from ..terminal.progress import Show
    from ..train.data import Split
    from ..train.run import Run
    from ..train.settings import TrainSettings
    from ..train.start import Start

_IGNORED = {
    **{"train": True, "test": False, "fine_tune_type": "lora", "mask_prompt": True},
    "trust_remote_code": False,
}
"""Settings of mlx_lm.lora that mean nothing here, with the one value that they may have."""
_WITHOUT_MEANING = ("test_batches", "config", "project_name")
"""Settings of mlx_lm.lora that may have any value, as nothing here depends on them."""

_REPORTERS = ("wandb", "swanlab")
"""Packages that mlx_lm reports to."""

_HELD_OUT_TEXTS = 6
_SECONDS_BETWEEN_LINES = 60.0
_LEARNED = 1.05
"""Tokens a step that streams come to which have begun to learn; without any it is 1."""


@dataclass(frozen=True)
class DataOptions:
    """The base, what is learned from, and where the result goes."""

    PANEL = "Model and data"

    model: Annotated[
        str | None, Option(metavar="DIR|REPO", help="The base, quantized as it is deployed.")
    ] = None
    data: Annotated[
        str | None,
        Option(
            metavar="DIR",
            help="train.jsonl and valid.jsonl in one of mlx_lm's formats. Without it, the base "
            "answers prompts and its streams learn from that.",
        ),
    ] = None
    adapter_path: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Where the adapter goes; checkpoints and log go to DIR.training. "
            "Default: adapters.",
        ),
    ] = None
    prompt_template: Annotated[
        str | None,
        Option(help="Text around every prompt, with {text} in its place; kept in the adapter."),
    ] = None
    max_seq_length: Annotated[
        int | None,
        Option(
            parser=at_least(2), metavar="N", help="Longer sequences are left out. Default: 2048."
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option("--config", "-c", metavar="FILE", help="YAML with these settings, as mlx_lm's."),
    ] = None


@dataclass(frozen=True)
class AnswerOptions:
    """How the base answers where there is no --data."""

    PANEL = "The base's own answers, without --data"

    prompts: Annotated[
        str | None,
        Option(
            metavar="FILE|self",
            help="A prompt a line, or JSONL in one of mlx_lm's formats; self: the base, an "
            "instruct model, asks itself. Default: some hundred of general use.",
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        Option(
            parser=at_least(2),
            metavar="N",
            help="How many, with --prompts self. Default: 400.",
        ),
    ] = None
    prompt_script: Annotated[
        Literal["latin", "any"] | None,
        Option(
            help="latin (default): with --prompts self, those with letters of other scripts are "
            "left out."
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(parser=at_least(1), metavar="N", help="The most tokens of an answer. Default: 256."),
    ] = None
    temp: Annotated[
        float | None, Option(min=0, help="Temperature; 0 (default): the likeliest answer.")
    ] = None
    answers_only: Annotated[
        bool,
        Option(
            "--answers-only",
            help="Write the answers to DIR.training/data and end there, for another trainer.",
        ),
    ] = False


_SELF = "self"
_ANSWERS = tuple(AnswerOptions.__dataclass_fields__)


@dataclass(frozen=True)
class StreamOptions:
    """What the streams are like."""

    PANEL = "Streams"

    mode: Annotated[
        Literal["lossless", "shared"] | None,
        Option(help="lossless (default): the base stays as it is; shared: LoRA is trained too."),
    ] = None
    num_streams: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Streams beside each position (gamma). Default: 4.",
        ),
    ] = None
    num_msa_layers: Annotated[
        int | None,
        Option(parser=at_least(1), metavar="N", help="Top layers with streams (N_s). Default: 4."),
    ] = None
    stream_head: Annotated[
        Literal["plain", "conditioned"] | None,
        Option(help="conditioned (default) on the token before the predicted one, or plain."),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        Option(
            parser=at_least(0),
            metavar="N",
            help="Tokens that streams may draft, the most frequent ones; 0 (default): all.",
        ),
    ] = None
    init_adapter: Annotated[
        Path | None,
        Option(metavar="DIR", help="Start from this adapter's weights, and take its shape."),
    ] = None
    train: Annotated[
        Literal["all", "head"] | None,
        Option(
            "--train",
            help="all (default), or head: the conditioned head alone, on --init-adapter's streams.",
        ),
    ] = None


@dataclass(frozen=True)
class OptimizerOptions:
    """How it is trained, and for how long."""

    PANEL = "Optimization"

    iters: Annotated[
        int | None, Option(parser=at_least(1), metavar="N", help="Iterations. Default: 1000.")
    ] = None
    batch_size: Annotated[
        int | None,
        Option(parser=at_least(1), metavar="N", help="Sequences in an iteration. Default: 4."),
    ] = None
    grad_accumulation_steps: Annotated[
        int | None,
        Option(parser=at_least(1), metavar="N", help="Iterations of an update. Default: 1."),
    ] = None
    optimizer: Annotated[
        Literal["adam", "adamw", "muon", "sgd", "adafactor"] | None,
        Option(help="Default: adamw."),
    ] = None
    learning_rate: Annotated[
        float | None,
        Option(
            parser=positive,
            metavar="X",
            help="Its peak. Default: 5e-4 for LoRA, and for streams 4e-3, less where hidden_size "
            "is above 384.",
        ),
    ] = None
    stream_learning_rate: Annotated[
        float | None,
        Option(
            parser=positive, metavar="X", help="Of streams and pruner. Default: --learning-rate."
        ),
    ] = None
    embedding_learning_rate: Annotated[
        float | None,
        Option(
            parser=positive,
            metavar="X",
            help="Of the streams' embeddings. Default: --stream-learning-rate.",
        ),
    ] = None
    num_layers: Annotated[
        int | None,
        Option(
            parser=at_least(-1),
            metavar="N",
            help="Top layers with LoRA, in shared mode; -1 (default): all.",
        ),
    ] = None
    segment: Annotated[
        int | None,
        Option(
            parser=at_least(1),
            metavar="N",
            help="Positions whose streams are computed together. Default: 8.",
        ),
    ] = None
    grad_checkpoint: Annotated[
        bool, Option("--grad-checkpoint", help="Less memory, for more time.")
    ] = False
    compile: Annotated[
        bool, Option("--compile", help="Compile the step, once for every shape that comes.")
    ] = False
    seed: Annotated[int | None, Option(metavar="N", help="Default: 0.")] = None


@dataclass(frozen=True)
class ReportOptions:
    """What is said, tried and saved on the way."""

    PANEL = "Reports, validation, checkpoints"

    steps_per_report: Annotated[
        int | None, Option(parser=at_least(1), metavar="N", help="Default: 10.")
    ] = None
    steps_per_eval: Annotated[
        int | None, Option(parser=at_least(1), metavar="N", help="Default: 200.")
    ] = None
    val_batches: Annotated[
        int | None, Option(parser=at_least(-1), metavar="N", help="-1: all. Default: 25.")
    ] = None
    patience: Annotated[
        int | None,
        Option(
            parser=at_least(0),
            metavar="N",
            help="Validations without a longer accepted length after which the run ends; 0: never. "
            "Default: 5.",
        ),
    ] = None
    save_every: Annotated[
        int | None,
        Option(
            parser=at_least(1), metavar="N", help="Iterations between checkpoints. Default: 100."
        ),
    ] = None
    log: Annotated[
        Path | None,
        Option(metavar="FILE", help="Figures as JSON lines. Default: DIR.training/log.jsonl."),
    ] = None
    report_to: Annotated[
        str | None, Option(metavar="NAMES", help="wandb, swanlab or both, as in mlx_lm.")
    ] = None
    resume: Annotated[bool, Option("--resume", help="Go on from the last checkpoint.")] = False
    estimate: Annotated[bool, Option("--estimate", help="Only say what the run would take.")] = (
        False
    )
    no_outcome: Annotated[
        bool,
        Option("--no-outcome", help="Do not decode held-out texts at the end, to say what it won."),
    ] = False


@grouped(panels=True)
def train(
    *,
    data: DataOptions,
    answers: AnswerOptions,
    streams: StreamOptions,
    optimizer: OptimizerOptions,
    reports: ReportOptions,
) -> None:
    """Train streams for a model, on this machine.

    The base answers prompts, its streams learn to foresee such text, and at the end it is measured
    what that brings. Flags are those of mlx_lm.lora.

    [bold]Examples[/bold]

    Lossless streams for a model, from its own answers:

    [cyan]  specstream-mlx train --model my-4bit-model --adapter-path streams[/cyan]

    An adapter for one application, from data of yours:

    [cyan]  specstream-mlx train --model my-4bit-model --mode shared --data tickets[/cyan]
    """
    settings, answers = _settings(data, answers, streams, optimizer, reports)

    from mlx_lm.tuner.callbacks import get_reporting_callbacks

    from ..train.estimate import estimate
    from ..train.run import run_directory

    directory = run_directory(settings.adapter_path)
    _check_place(settings, directory)
    _check_report_to(reports.report_to)
    if answers.answers_only:
        from ..demonstration import model_path
        from ..loading import load

        written = _written_prompts(answers)
        base = load(model_path(settings.model, note))
        print(_answer(*base, settings, directory, answers, written))
        return
    start, run, valid = _prepared(settings, directory, answers)
    if settings.resume:
        run.restore(run.last)
    if run.is_finished:
        note(f"The run is at its end, after {run.progress.iterations} iterations")
    else:
        note(f"Training {estimate(run).sentence()}")
    if reports.estimate:
        return
    wrapped = None
    if reports.report_to:
        try:
            wrapped = get_reporting_callbacks(
                reports.report_to, log_dir=str(directory), config=asdict(settings)
            )
        except (ImportError, ValueError) as error:
            raise UserError(f"--report-to {reports.report_to}: {reason(error)}") from None
    _iterate(run, wrapped)
    adapter = run.write_adapter()
    _draw(run)
    if valid is not None:
        if run.progress.best_length is not None:
            _tell_best(run)
        if not reports.no_outcome:
            _tell_outcome(start, adapter, valid)
    print(adapter)


def _settings(*groups: Any) -> "tuple[TrainSettings, AnswerOptions]":
    """What the flags say and, behind them, the configuration file, checked."""
    from ..train.settings import TrainSettings

    given = {
        name: value
        for group in groups
        for name, value in vars(group).items()
        if value is not None and value is not False
    }
    for name in ("report_to", "estimate", "no_outcome"):
        given.pop(name, None)
    path = given.pop("config", None)
    values = (_read_config(path) if path else {}) | given
    for name in ("adapter_path", "init_adapter", "log", "prompts"):
        if name in values:
            if not isinstance(values[name], (str, Path)):
                raise UserError(f"{path}: {name} is {shown(values[name])}, expected a path")
            if name != "prompts":  # where ./self is a file
                values[name] = Path(values[name])
    if "model" not in values:
        raise UserError("--model is missing, expected the base to train streams for")
    asked = {name: values.pop(name) for name in _ANSWERS if name in values}
    settings = TrainSettings(**values)
    settings.check()
    _check_answers(asked)
    for name in asked if settings.data is not None else ():
        flag = f"--{name.replace('_', '-')}"
        raise UserError(f"--data and {flag} were both given, expected at most one")
    return settings, AnswerOptions(**asked)


def _check_answers(asked: dict[str, Any]) -> None:
    """Check how the base is to answer, which a configuration file may say too."""
    check_integer("max_tokens", asked.get("max_tokens", 1))
    check_integer("num_prompts", asked.get("num_prompts", 2), least=2)
    temp = asked.get("temp", 0.0)
    if not (is_number(temp) and temp >= 0):
        raise UserError(f"temp is {shown(temp)}, expected a number of at least 0")
    for name, choices in (("prompt_script", ("latin", "any")), ("answers_only", (True, False))):
        if name in asked and asked[name] not in choices:
            expected = " or ".join(map(str, choices))
            raise UserError(f"{name} is {shown(asked[name])}, expected {expected}")
    for name in ("num_prompts", "prompt_script") if asked.get("prompts") != _SELF else ():
        if name in asked:
            raise UserError(f"--{name.replace('_', '-')} was given without --prompts {_SELF}")


def _read_config(path: Path) -> dict[str, Any]:
    """The settings of a YAML file like mlx_lm's; what is ``null`` is not set.

    Raises:
        UserError: it cannot be read, or has a field that no setting goes by.
    """
    import yaml
    from mlx_lm.lora import yaml_loader

    from ..train.settings import TrainSettings

    try:
        values = yaml.load(read_text(path), yaml_loader)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply, expected settings by name") from None
    except (yaml.YAMLError, ValueError) as error:  # this of a date that does not exist
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}," if mark else ""
        raise UserError(f"{path}{place} is not valid YAML: {reason(error)}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {shown(values)}, expected settings by name")
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in list(values.items()):
        if name in _WITHOUT_MEANING:
            del values[name]
        elif name in _IGNORED:
            if value != _IGNORED[name] and not (name == "train" and value in ("all", "head")):
                raise UserError(f"{path}: {name} is {shown(value)}, expected {_IGNORED[name]}")
            if name != "train" or value is True:
                del values[name]
        elif name not in _ANSWERS and name not in TrainSettings.__dataclass_fields__:
            raise UserError(f"{path} has {shown(name)}, which is no setting of train")
    return values


def _check_place(settings: "TrainSettings", directory: Path) -> None:
    """Check that nothing is overwritten but, by a run that is resumed, its own adapter."""
    from ..train.run import check_log, is_adapter, last_checkpoint

    if settings.log is not None:
        check_log(settings.log)
    target = settings.adapter_path
    if target.exists() and not (settings.resume and is_adapter(target)):
        resumable = last_checkpoint(directory).exists() and is_adapter(target)
        more = ", or --resume to go on with its run" if resumable else ""
        raise UserError(f"{target} exists already, expected a new --adapter-path{more}")
    begun = last_checkpoint(directory).exists()
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


def _check_report_to(names: str | None) -> None:
    """Check, before hours of work, that the packages of --report-to are installed."""
    for name in filter(None, (part.strip() for part in (names or "").split(","))):
        if name in _REPORTERS and find_spec(name) is None:
            raise UserError(f"--report-to has {name}, which is missing: pip install {name}")


def _prepared(
    settings: "TrainSettings", directory: Path, answers: AnswerOptions
) -> "tuple[Start, Run, Split | None]":
    """Load the base, make its answers where they are the data, and read the data."""
    from ..demonstration import model_path
    from ..loading import load
    from ..train.data import read_split
    from ..train.run import Run
    from ..train.start import start_of

    if settings.data is not None:
        data = Path(settings.data)
        if not data.is_dir():
            found = "is a file" if data.exists() else "does not exist"
            raise UserError(f"{data} {found}, expected a directory with train.jsonl in it")
        start = start_of(settings, *load(model_path(settings.model, note)))
    else:
        written = _written_prompts(answers)
        start = start_of(settings, *load(model_path(settings.model, note)))
        data = _answer(start.base, start.tokenizer, settings, directory, answers, written)
    splits: dict[str, Split | None] = {}
    for name in ("train", "valid"):
        path = data / f"{name}.jsonl"
        splits[name] = None
        if name == "train" or path.exists():
            found = splits[name] = read_split(
                path,
                start.tokenizer,
                settings.max_seq_length,
                start.base.config["vocab_size"],
                settings.prompt_template,
            )
            if found.too_long:
                note(
                    f"{path}: {found.too_long} sequences over {settings.max_seq_length} tokens "
                    "left out"
                )
    if splits["valid"] is None:
        note(f"{data} has no valid.jsonl: the last state is taken, and what it brings not measured")
    return start, Run(settings, start, splits["train"], splits["valid"]), splits["valid"]


def _written_prompts(answers: AnswerOptions) -> list[str] | None:
    """The prompts of a file; ``None``: the base is to ask itself."""
    from ..train.distil import SHIPPED, read_prompts

    if answers.prompts == _SELF:
        return None
    return read_prompts(SHIPPED if answers.prompts is None else Path(answers.prompts))


def _answer(
    base: "SpeculativeModel",
    tokenizer: "TokenizerWrapper",
    settings: "TrainSettings",
    directory: Path,
    answers: AnswerOptions,
    prompts: list[str] | None,
) -> Path:
    """Let the base answer prompts, or ask itself and answer. Returns where the answers are."""
    from ..terminal.progress import progress
    from ..train.distil import Answering, distil, fitting

    asked = {"max_tokens": answers.max_tokens, "temp": answers.temp}
    asked = {name: value for name, value in asked.items() if value is not None}
    answering = Answering(**asked, seed=settings.seed, template=settings.prompt_template)
    data = directory / "data"
    try:
        if prompts is None:
            prompts = _asked(base, tokenizer, settings, directory, answers)
        fit = fitting(base, tokenizer, prompts, answering, settings.max_seq_length)
        if len(fit) < len(prompts):
            note(
                f"{len(prompts) - len(fit)} of {len(prompts)} prompts leave no room for an answer "
                "and are left out"
            )
        with progress("The base answers prompts") as show:
            told = _Told(show, "The base answers", "answered")
            distil(base, tokenizer, fit, data, answering, told)
    except KeyboardInterrupt:
        note("Stopped; the same command goes on with what is there")
        raise
    return data


def _asked(
    base: "SpeculativeModel",
    tokenizer: "TokenizerWrapper",
    settings: "TrainSettings",
    directory: Path,
    answers: AnswerOptions,
) -> list[str]:
    """The prompts that the base asks itself."""
    from ..terminal.progress import progress
    from ..train.self_prompts import Asking, ask_itself

    given = {"count": answers.num_prompts, "script": answers.prompt_script}
    given = {name: value for name, value in given.items() if value is not None}
    asking = Asking(**given, seed=settings.seed, template=settings.prompt_template)
    with progress("The base draws prompts") as show:
        told = _Told(show, "The base draws", "drawn")
        asked = ask_itself(base, tokenizer, directory, asking, told)
    if asked.drawn:
        note(asked.sentence())
    return asked.prompts


class _Told:
    """Tells how many prompts are drawn or answered: to a bar, and every minute in a line.

    Without a terminal there is no bar, and a base takes hours to answer some thousand prompts.

    Args:
        show: the bar.
        doing: who does what.
        done: what becomes of a prompt.
    """

    def __init__(self, show: "Show", doing: str, done: str):
        self._show, self._doing, self._done, self._said = show, doing, done, 0.0

    def __call__(self, done: float, total: float) -> None:
        self._show(done, total)
        now = time.monotonic()
        if not self._said:
            already = f"; {done:.0f} are {self._done}" if done else ""
            note(f"{self._doing} {total:.0f} prompts{already}")
        elif now - self._said < _SECONDS_BETWEEN_LINES or done == total:
            return
        else:
            note(f"{done:.0f} of {total:.0f} prompts {self._done}")
        self._said = now


def _iterate(run: "Run", wrapped: Any) -> None:
    """Run it with a line for every report."""
    from mlx_lm.tuner.callbacks import TrainingCallback

    from ..terminal.progress import progress
    from ..train.estimate import duration

    class Lines(TrainingCallback):
        """Prints mlx_lm's lines, and how long the run will go on."""

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
            if wrapped is not None:
                wrapped.on_train_loss_report(train_info)

        def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
            accuracy = " ".join(f"{share:.2f}" for share in val_info["accuracy"][1:])
            note(
                f"Iter {val_info['iteration']}: Val loss {val_info['val_loss']:.3f}, "
                f"Val took {val_info['val_time']:.1f}s, "
                f"accepted length {val_info['accepted_length']:.2f}, streams right {accuracy}"
            )
            if wrapped is not None:
                wrapped.on_val_loss_report(val_info)

    interrupts: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        """Let the iteration end, and the second time do as ever."""
        interrupts.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with progress("Training") as show:
            ended = run.iterate(Lines(), stops=lambda: bool(interrupts))
    finally:
        signal.signal(signal.SIGINT, before)
    if not ended:
        note(f"Stopped after {run.progress.iterations} iterations; --resume goes on")
        raise KeyboardInterrupt


def _draw(run: "Run") -> None:
    """Draw loss and accepted length, where the log has more than two figures of them."""
    from ..train.run import logged

    for name, title in (("train_loss", "Train loss"), ("accepted_length", "Accepted length")):
        try:
            points = logged(run.log, name)
        except UserError as error:
            note(f"No chart: {error}")
            return
        if len(points) > 2:
            note("\n".join(chart(f"{title} by iteration", points)))


def _tell_best(run: "Run") -> None:
    """Say which state the adapter is, and whether its streams have learned anything."""
    best = run.progress
    note(
        f"The adapter is the state after {best.best_iteration} iterations, whose accepted length "
        f"was the longest, {best.best_length:.2f}"
    )
    if best.best_length < _LEARNED:
        note(
            "Its streams have learned next to nothing: more iterations, more data, or a smaller "
            "--learning-rate may help"
        )


def _tell_outcome(start: "Start", adapter: Path, valid: "Split") -> None:
    """Decode held-out prompts with the finished adapter, and say what it brings."""
    from ..terminal.progress import progress
    from ..train.outcome import measure

    start.base.swap_adapter(adapter)
    prompts = [item.tokens[: item.stream_from] for item in valid.items[:_HELD_OUT_TEXTS]]
    try:
        with progress("Decoding held-out texts") as show:
            found = measure(start.base, start.tokenizer, prompts, show=show)
    except KeyboardInterrupt:
        note(f"Stopped; {adapter} is complete, and --resume compares it again")
        raise
    note(found.sentence())
