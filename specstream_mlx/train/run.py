"""A training run: iterations, validation, checkpoints, and the adapter at its end.

The state of a run is its last checkpoint. Batches, schedules and draws are functions of the
settings and of how many iterations are done, so a run that was interrupted and resumed writes the
same bytes as one that was not.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.utils import build_schedule

from ..adapters.description import ADAPTER_FILES
from ..adapters.files import write_adapter
from ..adapters.lora import NO_LORA
from ..checked_files import read_json_lines
from ..config import VOCABULARY, UserError, shown
from ..staging import append, other_file, staged_directory
from .checkpoint import Checkpoint
from .data import Split
from .forward import StreamForward
from .items import Batches, Item
from .loss import n_gram_loss
from .optimizer import GroupedOptimizer, Schedule, warm_up_and_fall
from .parameters import Parameters, Trained, is_of_streams
from .sequences import Scored, Sequences, sequences_of
from .settings import TrainSettings
from .start import Start, set_vocabulary
from .validation import Validation, validate

_MULTIPLE = 32
"""Compiled steps have lengths filled up to multiples of this."""

_MOST_ITERATIONS = 1 << 31
"""So many draw otherwise with the next seed."""


class StepFunction:
    """Loss and gradients of an iteration.

    Args:
        forward: the model and streams.
        trained: what has gradients.
        compiled: compile it, once for every shape that comes.
    """

    def __init__(self, forward: StreamForward, trained: Trained, compiled: bool):
        def loss_of(
            parameters: Parameters,
            tokens: mx.array,
            positions: mx.array,
            prompt_rows: int,
            scored: dict[str, mx.array],
        ) -> tuple[mx.array, mx.array, mx.array]:
            trained.set(parameters)
            sequences = Sequences(tokens, positions, prompt_rows)
            loss = n_gram_loss(forward, sequences, Scored(**scored))
            return loss.total, loss.per_stream, loss.pruner

        self._function = mx.value_and_grad(loss_of)
        if compiled:
            state = mx.random.state
            self._function = mx.compile(self._function, inputs=state, outputs=state)
        self._trained = trained

    def __call__(
        self, parameters: Parameters, sequences: Sequences, scored: Scored
    ) -> tuple[tuple[mx.array, mx.array, mx.array], Parameters]:
        """Total loss, that of the streams and of the pruner, and the gradients by name."""
        losses, gradients = self._function(
            parameters, sequences.tokens, sequences.positions, sequences.prompt_rows, vars(scored)
        )
        self._trained.set(parameters)  # in place of traced ones
        return losses, gradients


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        iterations: done.
        trained_tokens: completion tokens that were learned from, with repetitions.
        seconds: spent on iterations.
        best_length: the longest accepted length of a validation; 0 before the first.
        best_iteration: the iterations that were done at it.
        waited: validations since.
    """

    iterations: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    best_length: float = 0.0
    best_iteration: int = 0
    waited: int = 0


class Run:
    """A run in memory.

    Args:
        settings: checked.
        start: from ``start_of``.
        train: what to learn from.
        valid: what the streams are tried on; ``None``: nothing.

    Attributes:
        progress: so far.
        directory: where checkpoints and the log are.
    """

    def __init__(self, settings: TrainSettings, start: Start, train: Split, valid: Split | None):
        self.settings, self.progress = settings, Progress()
        self.directory = run_directory(settings.adapter_path)
        self._start = start
        set_vocabulary(start.streams, train.items, start.base.config["vocab_size"])
        everything = Trained(start.model, start.streams).get()
        self._trained = Trained(start.model, start.streams, settings.train == "head")
        self.parameters = self._trained.get()
        self._frozen = {n: a for n, a in everything.items() if n not in self.parameters}
        if not self.parameters:
            raise UserError(
                "nothing to train: expected stream embeddings, adapters, a pruner or LoRA"
            )
        self._forward = StreamForward(
            start.model, start.base.config, start.streams, settings.grad_checkpoint
        )
        self._alphas = settings.alphas(start.streams.config.num_streams)
        self._exits = any(name.startswith("pruner.") for name in self.parameters)
        self._step = StepFunction(self._forward, self._trained, settings.compile)
        self._optimizer = _optimizer(settings, list(self.parameters))
        self._optimizer.init(self.parameters)
        self._batches = Batches(train.items, settings.batch_size, settings.seed)
        self._valid: list[list[Item]] = []
        if valid is not None:
            batches = Batches(valid.items, settings.batch_size, 0).epoch(0)
            self._valid = batches if settings.val_batches < 0 else batches[: settings.val_batches]

    # Its state on disk --------------------------------------------------------------------------

    @property
    def last(self) -> Path:
        """The file of the last checkpoint."""
        return last_checkpoint(self.directory)

    @property
    def best(self) -> Path:
        """The file of the best checkpoint."""
        return self.directory / "best.safetensors"

    @property
    def log(self) -> Path:
        """The file of the figures, a JSON object a line."""
        return self.settings.log or self.directory / "log.jsonl"

    def save(self, path: Path) -> None:
        """Write a checkpoint.

        Raises:
            UserError: the file system refuses it.
        """
        Checkpoint(
            parameters=self.parameters,
            optimizer=self._optimizer.state,
            identity=self.settings.identity(),
            progress=asdict(self.progress),
        ).save(path)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            UserError: it cannot be read, or belongs to a run with other settings.
        """
        found = Checkpoint.load(path)
        found.check(path, self.settings.identity())
        if found.parameters.keys() != self.parameters.keys():
            raise UserError(f"{path} holds other parameters than this run trains")
        # In this run's order: the norm of all gradients is a sum, which depends on it.
        self.parameters = {name: found.parameters[name] for name in self.parameters}
        self._optimizer.state = found.optimizer
        self.progress = Progress(**found.progress)
        self._trained.set(self.parameters)

    def write_adapter(self) -> Path:
        """Write the best checkpoint, or what there is without validation, as an adapter directory.

        Raises:
            UserError: the file system refuses it, or the directory exists.
        """
        found = Checkpoint.load(self.best if self._valid else self.last)
        tensors = self._frozen | found.parameters
        streams = {name: tensor for name, tensor in tensors.items() if is_of_streams(name)}
        if self._start.streams.vocabulary is not None:
            streams[VOCABULARY] = self._start.streams.vocabulary
        lora = {name: tensor for name, tensor in tensors.items() if not is_of_streams(name)}
        parameters = self._start.lora_parameters or NO_LORA
        target, again = self.settings.adapter_path, self.settings.resume
        with staged_directory(target, replace=again and is_adapter(target)) as scratch:
            config = self._start.streams.config
            write_adapter(scratch, lora, parameters, self._start.num_layers, config, streams)
        return target

    # Iterations ---------------------------------------------------------------------------------

    def iterate(
        self, callback: TrainingCallback, stops: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run until the settings' iterations are done, or validation says that they are enough.

        Args:
            callback: told mlx_lm's figures, and ours beside them.
            stops: asked after every update whether the run is to be interrupted.

        Returns:
            Whether the run has come to its end.

        Raises:
            UserError: the loss is no number, or a file cannot be written.
        """
        settings, progress = self.settings, self.progress
        if not progress.iterations:
            self.save(self.last)  # so that a run that stops early can be resumed
            self._validate(callback)
        gathered: Parameters | None = None
        self._window = _Window()
        for items in self._batches.from_step(progress.iterations):
            if progress.iterations >= settings.iters or self._is_enough():
                break
            if gathered is None and stops():
                self.save(self.last)
                return False
            began = time.perf_counter()
            loss, gradients = self.gradients(items)
            if gathered is not None:
                gradients = tree_map(mx.add, gathered, gradients)
            gathered = gradients
            if (progress.iterations + 1) % settings.grad_accumulation_steps == 0:
                share = 1 / settings.grad_accumulation_steps
                mean = {name: gradient * share for name, gradient in gradients.items()}
                self.parameters = self._optimizer.apply(mean, self.parameters)
                self._trained.set(self.parameters)
                gathered = None
            mx.eval(self.parameters, self._optimizer.state, loss, gathered)
            if not math.isfinite(loss.item()):
                raise UserError(
                    f"the loss is {loss.item()} in iteration {progress.iterations + 1}, expected a "
                    f"number: {self.last} holds an earlier state; try a smaller learning rate"
                )
            tokens = sum(item.completion_tokens for item in items)
            seconds = time.perf_counter() - began
            progress.iterations += 1
            progress.trained_tokens += tokens
            progress.seconds += seconds
            self._window.add(loss.item(), tokens, seconds)
            self._after(callback, gathered is None)
            if mx.get_cache_memory() > settings.clear_cache_threshold > 0:
                mx.clear_cache()
        self.save(self.last)
        return True

    @property
    def epoch(self) -> list[list[Item]]:
        """The batches of the first epoch."""
        return self._batches.epoch(0)

    def gradients(self, items: list[Item]) -> tuple[mx.array, Parameters]:
        """Loss and gradients of a batch, not evaluated yet; nothing changes."""
        settings = self.settings
        step = sequences_of(
            items, self._alphas, settings.segment, _MULTIPLE if settings.compile else 1, self._exits
        )
        self._start.model.train()
        mx.random.seed(settings.seed * _MOST_ITERATIONS + self.progress.iterations)
        (loss, _, _), gradients = self._step(self.parameters, *step)
        return loss, gradients

    def _after(self, callback: TrainingCallback, is_update: bool) -> None:
        """Report, validate and save where it is time to."""
        settings, done = self.settings, self.progress.iterations
        at_end = done == settings.iters
        if done % settings.steps_per_report == 0 or at_end:
            figures = {
                "iteration": done,
                **self._window.figures(),
                "learning_rate": max(self._optimizer.learning_rates.values()),
                "trained_tokens": self.progress.trained_tokens,
                "peak_memory": mx.get_peak_memory() / 1e9,
            }
            callback.on_train_loss_report(figures)
            self._log(figures)
            self._window = _Window()
        if done % settings.steps_per_eval == 0 or at_end:
            self._validate(callback)
        if is_update and done % settings.save_every == 0:
            self.save(self.last)

    def _is_enough(self) -> bool:
        patience = self.settings.patience
        return bool(patience and self._valid) and self.progress.waited >= patience

    def validation(self) -> Validation:
        """What the streams would win as they are now."""
        self._start.model.eval()
        return validate(self._forward, self._valid, self._alphas, self.settings.segment)

    def _validate(self, callback: TrainingCallback) -> None:
        if not self._valid:
            return
        began, progress = time.perf_counter(), self.progress
        found = self.validation()
        if progress.iterations and found.accepted_length > progress.best_length:
            progress.best_length, progress.waited = found.accepted_length, 0
            progress.best_iteration = progress.iterations
            self.save(self.best)
        elif progress.iterations:
            progress.waited += 1
        figures = {
            "iteration": progress.iterations,
            "val_loss": found.loss,
            "val_time": time.perf_counter() - began,
            "accuracy": found.accuracy,
            "accepted_length": found.accepted_length,
        }
        callback.on_val_loss_report(figures)
        self._log(figures)

    def _log(self, figures: dict[str, Any]) -> None:
        append(self.log, json.dumps(figures) + "\n")


@dataclass
class _Window:
    """Sums since the last report."""

    loss: float = 0.0
    iterations: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, loss: float, tokens: int, seconds: float) -> None:
        self.loss, self.iterations = self.loss + loss, self.iterations + 1
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def figures(self) -> dict[str, float]:
        return {
            "train_loss": self.loss / self.iterations,
            "iterations_per_second": self.iterations / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
        }


def run_directory(adapter_path: Path) -> Path:
    """Where a run keeps its checkpoints, log and data: beside the adapter that it writes."""
    return adapter_path.with_name(f"{adapter_path.name}.training")


def last_checkpoint(directory: Path) -> Path:
    """The file of a run's last checkpoint in its directory."""
    return directory / "last.safetensors"


def logged(log: Path, name: str) -> list[tuple[int, float]]:
    """A figure by iteration; an interrupted run's is taken from where it went on.

    Args:
        log: a run's.
        name: of the figure.
    """
    found: list[tuple[int, float]] = []
    for _, figures in read_json_lines(log):
        now = figures["iteration"]
        if name in figures:
            found = [point for point in found if point[0] < now] + [(now, figures[name])]
        else:
            found = [point for point in found if point[0] <= now]
    return found


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds nothing but an adapter's files, so that it may be replaced."""
    return directory.is_dir() and other_file(directory, ADAPTER_FILES) is None


def _optimizer(settings: TrainSettings, names: list[str]) -> GroupedOptimizer:
    streams = settings.stream_learning_rate or settings.learning_rate
    rates = {
        "lora": settings.learning_rate,
        "streams": streams,
        "embeddings": settings.embedding_learning_rate or streams,
    }
    options = dict(settings.optimizer_config.get(settings.optimizer, {}))
    if settings.optimizer in ("adam", "adamw"):
        options.setdefault("bias_correction", True)
    if settings.optimizer == "adamw":
        options.setdefault("weight_decay", 0.0)
    return GroupedOptimizer(
        settings.optimizer, options, rates, _schedule(settings), settings.max_grad_norm, names
    )


def _schedule(settings: TrainSettings) -> Schedule:
    """The factor of all learning rates, by the number of updates."""
    if settings.lr_schedule is None:
        return warm_up_and_fall(-(-settings.iters // settings.grad_accumulation_steps))
    try:
        schedule = build_schedule(settings.lr_schedule)
        peak = float(settings.lr_schedule["arguments"][0])
        schedule(mx.array(0))
    except Exception as error:  # mlx_lm lets through whatever a wrong field leads to
        raise UserError(f"lr_schedule is {shown(settings.lr_schedule)}: {error}") from None
    return lambda step: schedule(step) / peak
