"""Longer inputs of the writing tasks: letters of several paragraphs, lists, long conversations.

They are made of items of the mixture and have no answer of their own: the tuned base answers them,
and streams learn from that.
"""

import random

from . import mixture
from .tasks import repeats_typed_text

_LETTERS = "proofread", "friendly", "professional", "concise", "key_points"
_GREETINGS = (
    "Hi all,|Hello,|Dear {name},|Hi {name},|hey {name}|Good morning,|Hi team,|Dear Mr {name},|"
    "Dear Ms {name},|dear all,|{name},|To everyone in the office,"
).split("|")
_SIGNATURES = (
    "Best,\n{name}|Best regards,\n{name}|Thanks,\n{name}|Kind regards\n{name}|thx\n{name}|"
    "See you soon,\n{name}|{name}|Yours sincerely,\n{name}|Cheers, {name}"
).split("|")
_NAMES = (
    "Anna Ben Carla Deepak Ewa Farid Grace Henrik Ines Jamal Keiko Liam Maria Noor Oskar Petra "
    "Quentin Rosa Samir Tilda Uma Yusuf"
).split()
_BULLETS = "- ", "* ", "{number}. ", "{number}) "


def longer(rng: random.Random, task: str) -> str:
    """Draw what a user might type at length for a task."""
    while True:
        text = _drawn(rng, task)
        if not repeats_typed_text(text):
            return text


def _drawn(rng: random.Random, task: str) -> str:
    def contents(least: int, most: int) -> list[str]:
        return [mixture.draw(rng, task).content for _ in range(rng.randint(least, most))]

    if task == "summarize":
        return "\n".join(contents(1, 3))
    if task not in _LETTERS:
        return mixture.draw(rng, task).content
    if rng.random() < 0.25:
        bullet = rng.choice(_BULLETS)
        lines = enumerate(contents(3, 7), 1)
        return "\n".join(bullet.format(number=number) + line for number, line in lines)
    paragraphs = [" ".join(contents(1, 2)) for _ in range(rng.randint(2, 4))]
    ends = [rng.choice(x).format(name=rng.choice(_NAMES)) for x in (_GREETINGS, _SIGNATURES)]
    return rng.choice(("\n\n", "\n\n", "\n")).join((ends[0], *paragraphs, ends[1]))
