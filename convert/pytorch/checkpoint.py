"""Checkpoints of a training run, from which ``--resume`` continues it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from specstream_mlx.errors import UserError, check_integer, is_number, shown
from specstream_mlx.files import check_shapes, staged_file
from specstream_mlx.train.stream_settings import check_identity

from .training_settings import RunSettings


@dataclass(frozen=True)
class Checkpoint:
    """The file of a run, and what it holds besides its progress.

    Attributes:
        path: the file.
        settings: the run's settings.
        weights: parameters by name, those too that stay as they are.
        optimizer: the run's optimizer.
    """

    path: Path
    settings: RunSettings
    weights: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer

    def save(self, step: int, seconds: float, *, replace: bool = True) -> None:
        """Write all that a run needs to continue as if it had not stopped.

        Args:
            step: steps done.
            seconds: time spent on them.
            replace: whether a checkpoint that is there is replaced once this one is complete.

        Raises:
            UserError: the file cannot be written, or is there and not to be replaced.
        """
        state = {
            "settings": self.settings.identity(),
            "step": step,
            "seconds": seconds,
            "weights": {name: p.detach() for name, p in self.weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        with staged_file(self.path, replace=replace) as scratch:
            torch.save(state, scratch)

    def load(self) -> tuple[int, float]:
        """Restore the file into the parameters, the optimizer and torch's generator.

        Returns:
            The steps done before, and the seconds spent on them.

        Raises:
            UserError: there is no checkpoint, it is damaged, or it was made with other settings.
        """
        path, weights, optimizer = self.path, self.weights, self.optimizer
        if not path.is_file():
            raise UserError(f"nothing to resume: {path} does not exist")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            found, step, seconds = dict(state["settings"]), state["step"], state["seconds"]
            kept = state["optimizer"]["state"]
            check_integer("step", step, least=0, most=2**63 - 1)
            if not (is_number(seconds) and seconds >= 0):
                raise UserError(f"seconds is {shown(seconds)}")
        except UserError as error:
            raise UserError(f"{path} is not a readable checkpoint: {error}") from None
        except Exception as error:  # torch.load raises what the damaged bytes lead to
            raise UserError(
                f"{path} is not a readable checkpoint: {type(error).__name__}"
            ) from None
        check_identity(path, found, self.settings.identity())
        # The groups are this run's own: they hold settings, which are the same.
        groups = optimizer.state_dict()["param_groups"]
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        try:
            shapes = {name: tuple(tensor.shape) for name, tensor in state["weights"].items()}
            check_shapes(path, shapes, {name: tuple(p.shape) for name, p in weights.items()})
            for number, tensors in kept.items():
                shape = tuple(trained[number].shape)
                if {name: tuple(t.shape) for name, t in tensors.items()} != _adam_shapes(shape):
                    raise ValueError
            if step and not kept:
                raise ValueError
            with torch.no_grad():
                for name, parameter in weights.items():
                    parameter.copy_(state["weights"][name])
            optimizer.load_state_dict({"state": kept, "param_groups": groups})
            torch.set_rng_state(state["rng"])
        except UserError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path} does not fit this run: {type(error).__name__}") from None
        return step, seconds


def _adam_shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what AdamW keeps for a parameter."""
    return {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
