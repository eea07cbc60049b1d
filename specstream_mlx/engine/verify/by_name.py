"""The verify rules by name: which one is meant, and whether it goes with sampler and trees.

A new rule is one file beside this one, with a class that derives from ``rule.VerifyRule``, and its
name here (and in the options of the command line).
"""

from collections.abc import Sequence
from typing import Literal

from mlx_lm.sample_utils import LogitsProcessor, Sampler

from ...config import UserError
from ...drafting.settings import DraftSettings
from ..sampling import Sampling, takes_arg_max
from .rejection import RejectionRule
from .rule import VerifyRule
from .typical import TypicalRule

VerifyName = Literal["greedy", "sample", "rejection", "typical"]

_RULES: dict[str, type[VerifyRule]] = {
    "greedy": VerifyRule,
    "sample": VerifyRule,
    "rejection": RejectionRule,
    "typical": TypicalRule,
}


def rule_name(name: VerifyName | None, sampler: Sampler | None) -> VerifyName:
    """The rule's name; if none is given, ``greedy`` without a temperature and else ``sample``.

    Raises:
        UserError: there is no such rule, or it does not fit the sampler.
    """
    certain = takes_arg_max(sampler)
    if name is None:
        return "greedy" if certain else "sample"
    if name not in _RULES:
        raise UserError(f"verify is {name!r}, expected one of {tuple(_RULES)}")
    if name == "greedy" and not certain:
        raise UserError(
            "verify is 'greedy', but a temperature or a sampler was given, "
            "expected neither, or another rule"
        )
    if _RULES[name].needs_probabilities and (certain or not isinstance(sampler, Sampling)):
        raise UserError(
            f"verify is {name!r}, which needs the target's probabilities at a temperature, "
            "expected a temp above 0 and, from Python, sampler=Sampling(temp=..)"
        )
    return name


def check_rule(name: VerifyName, settings: DraftSettings) -> None:
    """Check that a rule's text has the distribution that it promises, with these settings.

    Raises:
        UserError: it would not have.
    """
    _RULES[name].check(settings)


def make_rule(
    name: VerifyName,
    sampler: Sampler | None,
    processors: Sequence[LogitsProcessor] | None,
    prompt: Sequence[int],
) -> VerifyRule:
    """Make the rule object for one generation; ``name`` is from ``rule_name``."""
    return _RULES[name](sampler, processors, prompt)
