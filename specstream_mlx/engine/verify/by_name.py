"""The verify rules by name, and the check that a rule fits the sampler."""

from typing import Literal

from mlx_lm.sample_utils import Sampler

from ...errors import UserError
from ..sampling import sampling_of, takes_arg_max
from .keyed import KeyedRule
from .rejection import RejectionRule
from .rule import VerifyRule
from .typical import TypicalRule

VerifyName = Literal["greedy", "keyed", "rejection", "typical"]

_RULES: dict[str, type[VerifyRule]] = {
    rule.name: rule for rule in (VerifyRule, KeyedRule, RejectionRule, TypicalRule)
}


def find_rule(
    verify: VerifyName | type[VerifyRule] | None, sampler: Sampler | None
) -> type[VerifyRule]:
    """Return the verify rule; by default ``greedy`` without a temperature and else ``keyed``."""
    certain = takes_arg_max(sampler)
    if verify is None:
        return VerifyRule if certain else KeyedRule
    if isinstance(verify, str) and verify not in _RULES:
        raise UserError(f"verify is {verify!r}, expected one of {tuple(_RULES)}")
    rule = _RULES[verify] if isinstance(verify, str) else verify
    if not certain and not rule.draws:
        raise UserError(
            f"verify is {rule.name!r}, but a temperature or a sampler was given, "
            "expected neither, or another rule"
        )
    if rule.needs_probabilities and (certain or sampling_of(sampler) is None):
        raise UserError(
            f"verify is {rule.name!r}, which needs the target's probabilities at a temperature, "
            "expected a temp above 0 and, from Python, sampler=keyed_sampler(seed, temp=..)"
        )
    return VerifyRule if certain else rule  # without a temperature ``keyed`` draws the arg-max
