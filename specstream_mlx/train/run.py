"""A training run: iterations, validation, checkpoints, and the adapter at its end.

The state of a run is its last checkpoint. Batches, schedules and draws are functions of the
settings and the number of iterations done, so a run that was interrupted and resumed writes the
same bytes as one that was not.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.tuner.callbacks import TrainingCallback

from ..adapters.description import ADAPTER_FILES
from ..adapters.files import LoraPart, write_adapter
from ..checked_files import read_json_lines, read_text, reason
from ..config import VOCABULARY, UserError, check_integer, is_number, shown
from ..staging import append, other_file, staged_directory
from .checkpoint import Checkpoint
from .data import Split
from .forward import StreamForward
from .items import Batches, Item
from .loss import n_gram_loss
from .optimizer import GroupedOptimizer, optimizer_options, schedule_of, warm_up_and_fall
from .parameters import Parameters, Trained, is_of_streams
from .sequences import Scored, Sequences, places_of, sequences_of
from .settings import TrainSettings
from .start import Start, set_vocabulary
from .validation import Validation, validate

_MULTIPLE = 32
"""Lengths of compiled steps are filled up to multiples of this."""

_MOST_ITERATIONS = 1 << 31
"""Seeds of a run: an iteration draws with the run's seed times this, plus its own number."""


class StepFunction:
    """Loss and gradients of an iteration, as a function.

    Args:
        forward: the model and streams.
        trained: the modules that get gradients.
        compiled: whether to compile it, once for every shape.
    """

    def __init__(self, forward: StreamForward, trained: Trained, compiled: bool):
        def loss_of(
            parameters: Parameters,
            tokens: mx.array,
            positions: mx.array,
            prompt_rows: int,
            scored: dict[str, Any],
        ) -> mx.array:
            trained.set(parameters)
            sequences = Sequences(tokens, positions, prompt_rows)
            return n_gram_loss(forward, sequences, Scored(**scored)).total

        self._function = mx.value_and_grad(loss_of)
        if compiled:
            state = mx.random.state
            self._function = mx.compile(self._function, inputs=state, outputs=state)
        self._trained = trained

    def __call__(
        self, parameters: Parameters, sequences: Sequences, scored: Scored
    ) -> tuple[mx.array, Parameters]:
        """Return the loss, and its gradients by name."""
        loss, gradients = self._function(
            parameters, sequences.tokens, sequences.positions, sequences.prompt_rows, vars(scored)
        )
        self._trained.set(parameters)  # in place of traced ones
        return loss, gradients


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        iterations: number of iterations done.
        trained_tokens: number of completion tokens trained on, with repetitions.
        best_length: the longest accepted length of a validation; ``None`` before the first.
        best_iteration: number of iterations done at that validation.
        waited: number of validations since.
    """

    iterations: int = 0
    trained_tokens: int = 0
    best_length: float | None = None
    best_iteration: int = 0
    waited: int = 0

    @classmethod
    def read(cls, path: Path, values: Mapping[str, Any]) -> "Progress":
        """Read the progress that a checkpoint holds.

        Args:
            path: the checkpoint, for the error.
            values: the progress's values by name.

        Raises:
            UserError: a value is missing, unknown or of another type.
        """
        try:
            progress = cls(**values)
            for name in ("iterations", "trained_tokens", "best_iteration", "waited"):
                check_integer(name, getattr(progress, name), least=0, most=2**63 - 1)
        except (TypeError, UserError) as error:
            raise UserError(f"{path} is no checkpoint of a run: {reason(error)}") from None
        best = progress.best_length
        if best is not None and not (is_number(best) and best >= 0):
            raise UserError(f"{path} is no checkpoint of a run: best_length is {shown(best)}")
        return progress


class Run:
    """A run in memory.

    Args:
        settings: checked settings.
        start: from ``start_of``.
        train: training data.
        valid: validation data; ``None``: no validation.

    Attributes:
        progress: the progress so far.
        directory: directory of checkpoints and log.
    """

    def __init__(self, settings: TrainSettings, start: Start, train: Split, valid: Split | None):
        self.settings, self.progress = settings, Progress()
        self.directory = run_directory(settings.adapter_path)
        self._start = start
        if start.chooses_vocabulary:
            set_vocabulary(start.streams, train.items, start.base.config["vocab_size"])
        everything = Trained(start.model, start.streams).get()
        head_alone = settings.train == "head"
        lora = settings.mode == "shared" and not head_alone
        self._trained = Trained(start.model, start.streams, lora=lora, head_alone=head_alone)
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
        self._places = places_of(start.streams.vocabulary, start.base.config["vocab_size"])
        self._step = StepFunction(self._forward, self._trained, settings.compile)
        hidden_size = start.streams.config.hidden_size
        self._optimizer = _optimizer(settings, hidden_size, list(self.parameters))
        self._optimizer.init(self.parameters)
        self._identity = settings.identity() | {"training data": _digest(train.items)}
        self._identity["LoRA of init_adapter"] = str(start.frozen_lora)
        self._batches = Batches(train.items, settings.batch_size, settings.seed)
        self._valid: list[list[Item]] = []
        if valid is not None:
            batches = Batches(valid.items, settings.batch_size, 0).epoch(0)
            self._valid = batches if settings.val_batches < 0 else batches[: settings.val_batches]

    # State on disk -----------------------------------------------------------------------------

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
            identity=self._identity,
            progress=asdict(self.progress),
        ).save(path)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            UserError: it cannot be read, or belongs to a run of another kind.
        """
        checkpoint = self._read(path)
        self.progress = Progress.read(path, checkpoint.progress)
        # In this run's order: the norm of all gradients is a sum, which depends on it.
        self.parameters = {name: checkpoint.parameters[name] for name in self.parameters}
        self._optimizer.state = checkpoint.optimizer
        self._trained.set(self.parameters)

    def _read(self, path: Path) -> Checkpoint:
        """Read a checkpoint of this run."""
        checkpoint = Checkpoint.load(path)
        checkpoint.check(path, self._identity, self.parameters, self._optimizer.state)
        return checkpoint

    def write_adapter(self) -> Path:
        """Write the best checkpoint, without validation the last, as an adapter directory.

        Raises:
            UserError: the file system refuses it, the directory exists, or the checkpoint is none
                of this run.
        """
        checkpoint = self._read(self.best if self._valid else self.last)
        tensors = self._frozen | checkpoint.parameters
        streams = {name: tensor for name, tensor in tensors.items() if is_of_streams(name)}
        if self._start.streams.vocabulary is not None:
            streams[VOCABULARY] = self._start.streams.vocabulary
        lora = LoraPart()
        if self._start.lora_parameters is not None:
            own = {name: tensor for name, tensor in tensors.items() if not is_of_streams(name)}
            lora = LoraPart(own, self._start.lora_parameters, self._start.num_layers)
        target, again = self.settings.adapter_path, self.settings.resume
        with staged_directory(target, replace=again and is_adapter(target)) as scratch:
            write_adapter(scratch, lora, self._start.streams.config, streams)
        return target

    # Iterations ---------------------------------------------------------------------------------

    def iterate(
        self, callback: TrainingCallback, stops: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run until the settings' iterations are done, or validation ends the run.

        Args:
            callback: called with mlx_lm's figures, and ours beside them.
            stops: function, called after every update, that tells whether to interrupt the run.

        Returns:
            Whether the run has come to its end.

        Raises:
            UserError: loss or gradients are no numbers, or a file cannot be written.
        """
        settings, progress = self.settings, self.progress
        together = settings.grad_accumulation_steps
        if not progress.iterations:
            self.save(self.last)  # so that a run that stops early can be resumed
            self._validate(callback)
        gathered: Parameters | None = None
        self._window = _Window()
        for items in self._batches.from_step(progress.iterations):
            if self.is_finished:
                break
            if gathered is None and stops():
                self.save(self.last)
                return False
            began = time.perf_counter()
            loss, gradients = self.gradients(items)
            if gathered is not None:
                gradients = tree_map(mx.add, gathered, gradients)
            gathered, norm = gradients, mx.array(0.0)
            count = progress.iterations % together + 1
            if count == together or progress.iterations + 1 == settings.iters:
                mean = {name: gradient / count for name, gradient in gradients.items()}
                self.parameters, norm = self._optimizer.apply(mean, self.parameters)
                self._trained.set(self.parameters)
                gathered = None
            mx.eval(self.parameters, self._optimizer.state, loss, norm, gathered)
            lost: Any = loss.item()
            clipped: Any = norm.item()
            for name, value in (("loss", lost), ("norm of the gradients", clipped)):
                if not math.isfinite(value):
                    raise UserError(
                        f"the {name} is {value} in iteration {progress.iterations + 1}, expected a "
                        "number: try a smaller learning rate with another --adapter-path, or "
                        f"remove {self.directory} first"
                    )
            tokens = sum(item.completion_tokens for item in items)
            seconds = time.perf_counter() - began
            progress.iterations += 1
            progress.trained_tokens += tokens
            self._window.add(lost, tokens, seconds)
            self._after(callback, 0 if gathered else count)
            if mx.get_cache_memory() > settings.clear_cache_threshold > 0:
                mx.clear_cache()
        self.save(self.last)
        return True

    @property
    def epoch(self) -> list[list[Item]]:
        """The batches of the first epoch."""
        return self._batches.epoch(0)

    def gradients(self, items: list[Item]) -> tuple[mx.array, Parameters]:
        """Return loss and gradients of a batch, not evaluated yet; nothing changes."""
        settings = self.settings
        step = sequences_of(
            items,
            self._alphas,
            settings.segment,
            _MULTIPLE if settings.compile else 1,
            self._exits,
            self._places,
        )
        self._start.model.train()
        mx.random.seed(settings.seed * _MOST_ITERATIONS + self.progress.iterations)
        return self._step(self.parameters, *step)

    def _after(self, callback: TrainingCallback, updated: int) -> None:
        """Report, validate and save where it is time to.

        Args:
            callback: see ``iterate``.
            updated: number of iterations in the update just done; 0: there was none.
        """
        settings, done = self.settings, self.progress.iterations
        at_end = done == settings.iters
        if done % settings.steps_per_report == 0 or at_end:
            rates = self._optimizer.learning_rates
            figures = {
                "iteration": done,
                **self._window.figures(),
                "learning_rate": rates.get("streams", max(rates.values())),
                "trained_tokens": self.progress.trained_tokens,
                "peak_memory": mx.get_peak_memory() / 1e9,
            }
            callback.on_train_loss_report(figures)
            self._log(figures)
            self._window = _Window()
        if done % settings.steps_per_eval == 0 or at_end:
            self._validate(callback)
        if done % settings.save_every < updated:
            self.save(self.last)

    @property
    def is_finished(self) -> bool:
        """True if all iterations are done, or validation has ended the run."""
        return self.progress.iterations >= self.settings.iters or self._is_enough()

    def _is_enough(self) -> bool:
        patience = self.settings.patience
        return bool(patience and self._valid) and self.progress.waited >= patience

    def validation(self) -> Validation:
        """Validate the streams as they are now."""
        self._start.model.eval()
        return validate(self._forward, self._valid, self._alphas, self.settings.segment)

    def _validate(self, callback: TrainingCallback) -> None:
        if not self._valid:
            return
        began, progress = time.perf_counter(), self.progress
        validation = self.validation()
        if progress.iterations or self.settings.init_adapter is not None:
            best = progress.best_length
            if best is None or validation.accepted_length > best:
                progress.best_length, progress.waited = validation.accepted_length, 0
                progress.best_iteration = progress.iterations
                self.save(self.best)
            else:
                progress.waited += 1
        figures = {
            "iteration": progress.iterations,
            "val_loss": validation.loss,
            "val_time": time.perf_counter() - began,
            "accuracy": validation.accuracy,
            "accepted_length": validation.accepted_length,
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
    """Return the directory of a run's checkpoints, log and data, beside its adapter."""
    return adapter_path.with_name(f"{adapter_path.name}.training")


def last_checkpoint(directory: Path) -> Path:
    """Return the file of a run's last checkpoint in its directory."""
    return directory / "last.safetensors"


def logged(log: Path, name: str) -> list[tuple[int, float]]:
    """Read a figure by iteration; a resumed run's lines replace the later ones before them.

    Args:
        log: a run's log; lines without an iteration are ignored.
        name: the figure's name.

    Raises:
        UserError: the log cannot be read.
    """
    points: list[tuple[int, float]] = []
    for _, figures in read_json_lines(log):
        now = figures.get("iteration") if isinstance(figures, dict) else None
        if now is None:
            continue
        if name in figures:
            points = [point for point in points if point[0] < now] + [(now, figures[name])]
        else:
            points = [point for point in points if point[0] <= now]
    return points


def check_log(path: Path) -> None:
    """Check that figures may be appended to a file: one that is new, or a run's log.

    Raises:
        UserError: it is something else, or cannot be read.
    """
    if os.path.lexists(path) and read_text(path).strip():
        try:
            rows = [figures for _, figures in read_json_lines(path)]
        except UserError:
            rows = []
        if not any(isinstance(figures, dict) and "iteration" in figures for figures in rows):
            raise UserError(f"{path} exists already and is no log of a run, expected another --log")


def is_adapter(directory: Path) -> bool:
    """Tell whether a directory holds an adapter's files alone, so that it may be replaced."""
    return directory.is_dir() and other_file(directory, ADAPTER_FILES) is None


def _optimizer(settings: TrainSettings, hidden_size: int, names: list[str]) -> GroupedOptimizer:
    peaks = settings.learning_rates(hidden_size)
    factors = {name: rate / peaks.lora for name, rate in vars(peaks).items()}
    if settings.lr_schedule is None:
        schedule = warm_up_and_fall(peaks.lora, settings.updates)
    else:
        schedule = schedule_of(settings.lr_schedule, settings.updates)
        if settings.learning_rate is None:
            factors = dict.fromkeys(factors, 1.0)
    return GroupedOptimizer(
        settings.optimizer,
        optimizer_options(
            settings.optimizer, settings.optimizer_config.get(settings.optimizer, {})
        ),
        schedule,
        factors,
        settings.max_grad_norm,
        names,
    )


def _digest(items: Sequence[Item]) -> str:
    """Return a digest of the items."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.stream_from} {list(item.tokens)}".encode())
    return digest.hexdigest()[:16]
