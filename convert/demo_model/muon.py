"""Muon, the optimizer of the base's matrices: momentum whose singular values are made alike.

That of ``torch.optim`` always multiplies in bfloat16, fifty times slower than float32 on a
processor without instructions for it. This one takes the dtype, and matrices of a shape at once.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPSILON = 1e-7


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """Bring the singular values of matrices near 1, by Newton and Schulz's iteration.

    Args:
        matrices: (N, rows, columns).

    Returns:
        The same shape; singular values lie between some 0.7 and 1.2, but for those near 0.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.mT if tall else matrices
    result = result / result.norm(dim=(1, 2), keepdim=True).clamp(min=_EPSILON)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = result @ result.mT
        result = torch.baddbmm(
            result, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), result, beta=a
        )
    return result.mT if tall else result


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and steps of the size of AdamW's (RMS 0.2 times the rate).

    Args:
        params: matrices.
        lr: learning rate.
        momentum: share of the momentum that stays at each step.
        weight_decay: decoupled, as AdamW's.
        dtype: that products are computed in.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move all matrices that have a gradient by one step."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = torch.stack([self._nesterov(p, group["momentum"]) for p in parameters])
                updates = orthogonalized(updates.to(self._dtype)).to(parameters[0].dtype)
                size = 0.2 * max(shape) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * size)

    def _nesterov(self, parameter: torch.nn.Parameter, momentum: float) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)
