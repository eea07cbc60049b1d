"""Drafting that goes on tuning itself while it generates.

The tuned choice is an average over calibration texts, and a text may be unlike them. So a
generation has a few ways to draft (arms), of which one is in use, and keeps moving averages of
what that one's steps come to. Where it falls under what another promises by more than chance, the
other is tried for some steps; besides, all others are tried now and then, as rarely as keeps what
is lost by it under ``_LOSS_SHARE`` of the time. The next text may begin where one has ended.

Costs are those of ``step_costs``, by the nodes of each step, so that a busy machine or a longer
text, which slow all arms alike, change no comparison. A trial also compares the clock's step time
with that of the arm before it, and corrects what the arm is thought to cost.
"""

import math
import statistics
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal

from ..drafting.settings import DraftSettings
from ..loop import Step

Kind = Literal["plain", "lookup", "streams", "hybrid"]

_PRIOR_WEIGHT, _MEMORY = 4, 32  # steps
_BETTER = 0.05  # by what another arm must promise more to be tried out of turn
_CHANCE = 1.0  # besides, over the root of the steps seen: by so much tokens of a step vary
_TRIAL_STEPS, _PLAIN_TRIAL_STEPS = 6, 3
_FIRST_GAP, _LONGEST_GAP = 32, 1024  # steps between trials of one arm
_LOSS_SHARE = 0.01
_PACE_MEMORY = 16
_OUTLIER = 2.0  # times the usual step: a slow reader, or another process


@dataclass(frozen=True)
class Arm:
    """One way to draft, and what its steps come to on the calibration texts.

    Attributes:
        kind: who drafts.
        settings: how.
        tokens: per step.
        nodes: per step, the root included.
        seconds: per step, the host's work included.
        host: seconds of each step that are not in ``Step.seconds``.
        costs: seconds of a step by its nodes, from 1 node on, without ``host``.
    """

    kind: Kind
    settings: DraftSettings
    tokens: float
    nodes: float
    seconds: float
    host: float
    costs: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def cost(self, nodes: int) -> float:
        """Seconds of a step over so many nodes; more than are known cost as many as are."""
        return self.costs[min(nodes, len(self.costs)) - 1] + self.host


class _Running:
    """The present estimates of what one arm's steps bring and cost."""

    def __init__(self, arm: Arm):
        self.arm = arm
        self.tokens, self.cost, self.weight = arm.tokens, arm.seconds, _PRIOR_WEIGHT
        self.seen = 0  # steps of those in the averages
        self.factor = 1.0  # by which its steps take longer than they should
        self.gap, self.due = _FIRST_GAP, _FIRST_GAP
        self.trial_steps = _PLAIN_TRIAL_STEPS if arm.kind == "plain" else _TRIAL_STEPS

    @property
    def seconds(self) -> float:
        return self.cost * self.factor

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def note(self, tokens: int, cost: float) -> None:
        share = 1 / (self.weight + 1)
        self.tokens += (tokens - self.tokens) * share
        self.cost += (cost - self.cost) * share
        self.weight = min(self.weight + 1, _MEMORY)
        self.seen = min(self.seen + 1, _MEMORY)


class AdaptiveDrafting:
    """A ``loop.Drafting`` for one generation, which goes on choosing between arms.

    Only speed depends on it: every arm's text is the target's. Not for the verify rule
    ``rejection``, for which an arm would have to be a tree of fixed shape.

    Args:
        arms: the one to begin with first; in shared mode none may move the streams.
    """

    def __init__(self, arms: Sequence[Arm]):
        self._arms = [_Running(arm) for arm in arms]
        self._now = self._home = self._arms[0]
        self._fresh = True  # the next step was drafted by nobody, or by the arm before
        self._steps = 0
        self._pace, self._pace_weight = 1.0, 0
        self._elapsed = self._lost = 0.0
        self._trial: list[float] = []  # observed over expected seconds of the trial's steps
        self._trial_tokens, self._trial_cost = 0, 0.0

    @property
    def arm(self) -> Arm:
        """The arm in use."""
        return self._now.arm

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms, in the order in which they were given."""
        return tuple(running.arm for running in self._arms)

    def successor(self) -> "AdaptiveDrafting":
        """A drafting for the next text, which knows what was learned from this one."""
        following = copy(self)
        following._arms = [copy(arm) for arm in self._arms]
        following._home = following._arms[self._arms.index(self._home)]
        following._now, following._fresh = following._home, True
        following._pace_weight = 0
        return following

    def settings(self) -> DraftSettings:
        """The settings of the arm in use."""
        return self._now.arm.settings

    def observe(self, step: Step) -> None:
        """Update the averages, and change the arm where another may be better."""
        self._steps += 1
        now, cost = self._now, self._now.arm.cost(step.tested_nodes)
        self._elapsed += cost * now.factor
        tokens = len(step.tokens)
        on_trial = now is not self._home
        if on_trial:
            self._trial_tokens += tokens
            self._trial_cost += cost * now.factor
        if self._fresh:
            self._fresh = False
            return
        now.note(tokens, cost)
        slowness = (step.seconds + now.arm.host) / cost
        if on_trial:
            self._trial.append(slowness)
            if len(self._trial) == now.trial_steps:
                self._judge()
            return
        self._keep_pace(slowness / now.factor)
        if len(self._arms) > 1:
            self._consider()

    def _keep_pace(self, slowness: float) -> None:
        """How long steps take, over what they should: a matter of the machine and the text."""
        if self._pace_weight > 2:
            slowness = min(max(slowness, self._pace / _OUTLIER), self._pace * _OUTLIER)
        self._pace += (slowness - self._pace) / (self._pace_weight + 1)
        self._pace_weight = min(self._pace_weight + 1, _PACE_MEMORY)

    def _consider(self) -> None:
        home = self._home
        others = [arm for arm in self._arms if arm is not home]
        best = max(others, key=lambda arm: arm.rate)
        if best.rate > (1 + _BETTER + _CHANCE / math.sqrt(home.seen)) * home.rate:
            self._try(best)
            return
        allowed = _LOSS_SHARE * self._elapsed - self._lost
        due = [arm for arm in others if arm.due <= self._steps and self._price(arm) <= allowed]
        if due:
            self._try(max(due, key=lambda arm: arm.rate))

    def _leaving(self) -> float:
        """Seconds of the call ahead that is thrown away when plain steps end."""
        return self._home.seconds if self._home.arm.kind == "plain" else 0.0

    def _price(self, arm: _Running) -> float:
        """Seconds that a trial is expected to lose; its first step has no drafts."""
        steps = arm.trial_steps
        spent = steps * arm.seconds + arm.arm.cost(1) * arm.factor + self._leaving()
        return spent - (steps * arm.tokens + 1) / self._home.rate

    def _try(self, arm: _Running) -> None:
        self._now, self._fresh = arm, True
        self._trial, self._trial_tokens, self._trial_cost = [], 0, self._leaving()

    def _judge(self) -> None:
        """Stay with the arm on trial, or go back."""
        arm, home = self._now, self._home
        found = statistics.median(self._trial) / self._pace if self._pace_weight else 1.0
        arm.factor += (min(max(found, 1 / _OUTLIER), _OUTLIER) - arm.factor) / 2
        loss = self._trial_cost - self._trial_tokens / home.rate
        self._lost += max(0.0, loss)
        if arm.rate > home.rate:
            home.gap, home.due = _FIRST_GAP, self._steps + _FIRST_GAP
            self._home = arm
            return
        arm.gap = min(2 * arm.gap, _LONGEST_GAP)
        arm.due = self._steps + arm.gap
        self._now, self._fresh = home, True
