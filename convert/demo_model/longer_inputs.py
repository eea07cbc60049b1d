"""Longer inputs of the writing tasks: letters of several paragraphs, lists, long conversations.

They are made of items of the mixture and have no answer of their own: the tuned base answers them,
and streams learn from that.
"""

import random

from . import mixture
from .tasks import repeats_typed_text

_LETTERS = "proofread", "friendly", "professional", "concise", "key_points"
_GREETINGS = (
    *("Hi all,", "Hello,", "Dear {name},", "Hi {name},", "hey {name}", "Good morning,", "Hi team,"),
    *("Dear Mr {name},", "Dear Ms {name},", "dear all,", "{name},", "To everyone in the office,"),
)
_SIGNATURES = (
    *("Best,\n{name}", "Best regards,\n{name}", "Thanks,\n{name}", "Kind regards\n{name}"),
    *(
        "thx\n{name}",
        "See you soon,\n{name}",
        "{name}",
        "Yours sincerely,\n{name}",
        "Cheers, {name}",
    ),
)
_NAMES = (
    *(
        "Anna",
        "Ben",
        "Carla",
        "Deepak",
        "Ewa",
        "Farid",
        "Grace",
        "Henrik",
        "Ines",
        "Jamal",
        "Keiko",
    ),
    *(
        "Liam",
        "Maria",
        "Noor",
        "Oskar",
        "Petra",
        "Quentin",
        "Rosa",
        "Samir",
        "Tilda",
        "Uma",
        "Yusuf",
    ),
)
_BULLETS = "- ", "* ", "{number}. ", "{number}) "


def longer(rng: random.Random, task: str) -> str:
    """Draw what a user might type at length for a task."""
    while True:
        text = _drawn(rng, task)
        if not repeats_typed_text(text):
            return text


def _drawn(rng: random.Random, task: str) -> str:
    def content() -> str:
        return mixture.draw(rng, task).content

    if task not in _LETTERS:
        joins = "\n" if task == "summarize" else " "
        count = rng.choice((1, 2, 2, 3)) if task == "summarize" else 1
        return joins.join(content() for _ in range(count))
    if rng.random() < 0.25:
        bullet = rng.choice(_BULLETS)
        lines = [bullet.format(number=i + 1) + content() for i in range(rng.randint(3, 7))]
        return "\n".join(lines)
    paragraphs = [
        " ".join(content() for _ in range(rng.randint(1, 2))) for _ in range(rng.randint(2, 4))
    ]
    greeting = rng.choice(_GREETINGS).format(name=rng.choice(_NAMES))
    signature = rng.choice(_SIGNATURES).format(name=rng.choice(_NAMES))
    between = rng.choice(("\n\n", "\n\n", "\n"))
    return between.join((greeting, *paragraphs, signature))
