"""A training run: iterations, validation, checkpoints, and the adapter at its end.

Its state is its last checkpoint: batches, schedules and draws follow from the settings and the
number of iterations done, so a resumed run writes the same bytes as one that was not interrupted.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.tuner.callbacks import TrainingCallback

from ..adapters.description import ADAPTER_FILES
from ..adapters.files import write_adapter
from ..errors import VOCABULARY, UserError, naming
from ..files import append, other_file, staged_directory
from ..options import integer, made_of, number, option
from .batches import Batches, Item, most_frequent
from .checkpoint import Checkpoint
from .forward import StreamForward
from .loss import n_gram_loss
from .optimizer import clipped, optimizer_of
from .sequences import Scored, Sequences, count_targets, places_of, sequences_of
from .settings import TrainSettings, default_alphas, identity
from .start import Start, Trained, is_of_streams
from .validation import replay, validate


@dataclass
class Progress:
    """Progress of a run."""

    iterations: int = option(0, integer(0))
    trained_tokens: int = option(0, integer(0, 2**63))  # of completions, with repetitions
    best_length: float | None = option(None, number(0))  # the longest accepted of a validation
    best_iteration: int = option(0, integer(0))  # iterations done at that validation
    waited: int = option(0, integer(0))  # validations since


class TrainingRun:
    """A run in memory, of checked settings; without validation data there is no validation."""

    def __init__(
        self, settings: TrainSettings, start: Start, train: list[Item], valid: list[Item] | None
    ):
        self.settings, self.progress = settings, Progress()
        self.directory = run_directory(settings.adapter_path)
        self.last, self.log = last_checkpoint(self.directory), self.directory / "log.jsonl"
        self.best = self.directory / "best.safetensors"
        base, streams, vocab_size = start.base, start.streams, start.base.config["vocab_size"]
        self._start, self._model = start, base.model
        if start.chooses_vocabulary:
            ids = most_frequent(train, streams.config.draft_vocabulary, vocab_size)
            streams.load_weights([(VOCABULARY, mx.array(ids, mx.int32))], strict=False)
        self.trained = Trained(self._model, streams)
        parameters = self.trained.trainable_parameters()
        if not tree_flatten(parameters):
            raise UserError(
                "nothing to train: expected stream embeddings, adapters, a pruner or LoRA"
            )
        self._forward = StreamForward(self._model, base.config, streams, settings.grad_checkpoint)
        self._alphas = default_alphas(settings.mode, streams.config.num_streams)
        self._places = places_of(streams.vocabulary, vocab_size)
        self._step = nn.value_and_grad(self.trained, self._loss)
        self._optimizer = optimizer_of(settings, streams.config.hidden_size)
        self._optimizer.init(parameters)
        digest = hashlib.sha256()
        for item in train:
            digest.update(f"{item.stream_from} {list(item.tokens)}".encode())
        self._identity = identity(settings) | {"training data": digest.hexdigest()[:16]}
        self._identity["LoRA of init_adapter"] = str(start.frozen_lora)
        self._batches = Batches(train, settings.batch_size, settings.seed)
        self._counts: tuple[int, np.ndarray] | None = None  # of the update that begins there
        self.valid, self._valid = valid or [], list[list[Item]]()
        if valid is not None:
            batches = Batches(valid, settings.batch_size, 0).epoch(0)
            self._valid = batches if settings.val_batches < 0 else batches[: settings.val_batches]

    def _state(self) -> Checkpoint:
        optimizer: Any = tree_flatten(self._optimizer.state)
        arrays, progress = self.trained.arrays(), asdict(self.progress)
        return Checkpoint(arrays, dict(optimizer), self._identity, progress)

    def save(self, path: Path) -> None:
        """Write a checkpoint to a file."""
        self._state().save(path)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        checkpoint = Checkpoint.load(path, self._state())
        with naming(f"{path} is no checkpoint of a run"):
            self.progress = made_of(Progress, checkpoint.progress)
        self.trained.load(checkpoint.parameters)
        self._optimizer.state = tree_unflatten(list(checkpoint.optimizer.items()))

    def write_adapter(self) -> Path:
        """Write the best checkpoint, without validation the last, as an adapter directory."""
        path = self.best if self._valid else self.last
        tensors = Checkpoint.load(path, self._state()).parameters
        streams = {name: tensor for name, tensor in tensors.items() if is_of_streams(name)}
        if self._start.streams.vocabulary is not None:
            streams[VOCABULARY] = self._start.streams.vocabulary
        lora = self._start.lora
        if self.settings.mode == "shared":
            of_lora = {name: tensor for name, tensor in tensors.items() if not is_of_streams(name)}
            lora = replace(lora, tensors=of_lora)
        target, again = self.settings.adapter_path, self.settings.resume
        with staged_directory(target, replace=again and is_adapter(target)) as scratch:
            write_adapter(scratch, lora, self._start.streams.config, streams)
        return target

    def iterate(
        self, callback: TrainingCallback, stops: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run until the iterations are done or validation ends the run; returns whether it ended.

        ``callback`` gets mlx_lm's figures and further ones; ``stops`` is called after every update.
        """
        settings, progress = self.settings, self.progress
        if not progress.iterations:
            self.save(self.last)  # so that a run that stops early can be resumed
            self._validate(callback)
        gathered: Any = None
        self._since_report: list[tuple[float, int, float]] = []  # loss, tokens, seconds
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
            count = progress.iterations % settings.grad_accumulation_steps + 1
            at_end = progress.iterations + 1 == settings.iters
            if count == settings.grad_accumulation_steps or at_end:
                mean = tree_map(lambda gradient, count=count: gradient / count, gradients)
                mean, norm = clipped(mean, settings.max_grad_norm)
                self._optimizer.update(self.trained, mean)
                gathered = None
            mx.eval(self.trained, self._optimizer.state, loss, norm, gathered)
            numbers: dict[str, Any] = {"loss": loss.item(), "norm of the gradients": norm.item()}
            for name, value in numbers.items():
                if not math.isfinite(value):
                    raise UserError(
                        f"the {name} is {value} in iteration {progress.iterations + 1}, expected "
                        "a number: try a smaller learning rate with another --adapter-path, or "
                        f"remove {self.directory} first"
                    )
            tokens = _tokens(items)
            progress.iterations += 1
            progress.trained_tokens += tokens
            self._since_report.append((numbers["loss"], tokens, time.perf_counter() - began))
            self._after(callback, 0 if gathered else count)
            if mx.get_cache_memory() > settings.clear_cache_threshold > 0:
                mx.clear_cache()
        self.save(self.last)
        return True

    def cost(self, memory: float) -> tuple[str, float, float, float]:
        """Return what is left to do, its seconds, and bytes of memory and disk."""
        # By steps on the first batch and the longest, or two rows of that if all took too much.
        settings, epoch = self.settings, self._batches.epoch(0)
        longest = max(epoch, key=_size)
        rows = sorted(longest, key=lambda item: len(item.tokens), reverse=True)
        (_, first), (_, both) = self._timed(rows[:1]), self._timed(rows[:2])
        peak = first + (len(rows) - 1) * max(0, both - first)
        rates = []
        for batch in [epoch[0], longest] if peak < memory else [rows[:2]]:
            seconds, used = min(self._timed(batch), self._timed(batch))
            rates.append(seconds / _size(batch))
            peak = used if peak < memory else peak
        self._model.eval()
        iterations = settings.iters - self.progress.iterations
        epochs = iterations / len(epoch)
        validated = (iterations // settings.steps_per_eval + 1) * sum(map(_size, self._valid))
        size = epochs * sum(map(_size, epoch)) + validated / 3  # these go forward alone
        seconds, tokens = size * sum(rates) / len(rates), epochs * sum(map(_tokens, epoch))
        arrays: Any = [*self.trained.arrays().items(), *tree_flatten(self._optimizer.state)]
        state = sum(array.nbytes for _, array in arrays)
        parameters = sum(array.size for array in self.trained.arrays().values())
        work = f"{parameters:,} parameters, {iterations} iterations, about {round(tokens):,} tokens"
        return work, seconds, peak + state, 4 * state  # an update's arrays; a file is made anew

    def _timed(self, batch: list[Item]) -> tuple[float, int]:
        """Return the seconds and the most memory that gradients of a batch take."""
        mx.reset_peak_memory()
        began = time.perf_counter()
        mx.eval(self.gradients(batch))
        return time.perf_counter() - began, mx.get_peak_memory()

    def gradients(self, items: list[Item]) -> tuple[mx.array, dict[str, Any]]:
        """Return loss and gradients of a batch, not evaluated yet; nothing changes."""
        exits = bool(self._start.streams.config.pruner_rank)
        if self.settings.replay:
            items = replay(self._forward, items, self._places)
        places, counts = self._places, self._targets_of_update()
        step = sequences_of(items, self._alphas, exits=exits, places=places, counts=counts)
        self._model.train()
        mx.random.seed(self.settings.seed * 2**31 + self.progress.iterations)
        parameters = self.trained.trainable_parameters()
        loss, gradients = self._step(*step)
        self.trained.update(parameters)  # in place of traced ones
        return loss, gradients

    def _targets_of_update(self) -> np.ndarray | None:
        """Return each stream's targets in the next update, per batch; ``None``: it has one batch.

        So the mean of the gradients of its batches is that of one batch with all their sequences.
        """
        settings, together = self.settings, self.settings.grad_accumulation_steps
        first = self.progress.iterations // together * together
        if (together := min(together, settings.iters - first)) <= 1:
            return None
        if self._counts is None or self._counts[0] != first:
            batches = islice(self._batches.from_step(first), together)
            items = [item for batch in batches for item in batch]
            counts = count_targets(items, len(self._alphas), self._places)
            self._counts = first, counts / together
        return self._counts[1]

    def _loss(self, sequences: Sequences, scored: Scored) -> mx.array:
        per_stream, pruner = n_gram_loss(self._forward, sequences, scored, self.settings.loss)
        return per_stream.sum() + pruner

    def _after(self, callback: TrainingCallback, updated: int) -> None:
        """Report, validate and save where it is time to, after an update of so many iterations."""
        settings, done = self.settings, self.progress.iterations
        at_end = done == settings.iters
        if done % settings.steps_per_report == 0 or at_end:
            losses, tokens, seconds = zip(*self._since_report, strict=True)
            figures = {
                "iteration": done,
                "train_loss": sum(losses) / len(losses),
                "iterations_per_second": len(losses) / sum(seconds),
                "tokens_per_second": sum(tokens) / sum(seconds),
                "learning_rate": self._optimizer.learning_rate.item(),
                "trained_tokens": self.progress.trained_tokens,
                "peak_memory": mx.get_peak_memory() / 1e9,
            }
            callback.on_train_loss_report(figures)
            append(self.log, json.dumps(figures) + "\n")
            self._since_report = []
        if done % settings.steps_per_eval == 0 or at_end:
            self._validate(callback)
        if done % settings.save_every < updated:
            self.save(self.last)

    @property
    def is_finished(self) -> bool:
        """True if all iterations are done, or validation has ended the run."""
        is_enough = 0 < self.settings.patience <= self.progress.waited
        return self.progress.iterations >= self.settings.iters or is_enough

    def _validate(self, callback: TrainingCallback) -> None:
        if not self._valid:
            return
        began, progress = time.perf_counter(), self.progress
        self._model.eval()
        validation = validate(self._forward, self._valid, self._alphas)
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
        append(self.log, json.dumps(figures) + "\n")


def run_directory(adapter_path: Path) -> Path:
    """Return the directory of a run's checkpoints, log and data."""
    return adapter_path.with_name(f"{adapter_path.name}.training")


def last_checkpoint(directory: Path) -> Path:
    """Return the file of a run's last checkpoint in its directory."""
    return directory / "last.safetensors"


def is_adapter(directory: Path) -> bool:
    """Tell whether a directory holds an adapter's files alone, so that it may be replaced."""
    return directory.is_dir() and other_file(directory, ADAPTER_FILES) is None


def duration(seconds: float) -> str:
    """Write seconds in words, to about a twentieth."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _tokens(items: Sequence[Item]) -> int:
    return sum(item.completion_tokens for item in items)


def _size(items: Sequence[Item]) -> int:
    """Return the positions of a batch, filled up to its longest sequence."""
    return len(items) * max(len(item.tokens) for item in items)
