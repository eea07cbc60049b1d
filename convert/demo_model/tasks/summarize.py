"""Summarise a short workplace dialogue in one or two sentences.

The content is a dialogue such as ``Ana: ... Ben: ...``; the target tells in the third person who
wanted what, how the other person answered, and what else was arranged, and leaves out greetings,
small talk and thanks. Held out are whole plots, that is, pairs of an act and an outcome; each act
and each outcome occurs in training in other pairs.
"""

import random

from . import dialogues
from .item import Item, Split

NAME = "summarize"
INSTRUCTION = "Summarize this conversation in one or two sentences."
TRAIN_TEMPLATES = dialogues.TRAIN_PLOTS
TEST_TEMPLATES = dialogues.TEST_PLOTS


def make(rng: random.Random, split: Split) -> Item:
    """One dialogue and its summary."""
    while True:
        talk = dialogues.dialogue(rng, split)
        if 40 <= len(talk.text) <= 350 and 80 <= len(talk.summary) <= 200:
            return Item(NAME, talk.text, talk.summary, (talk.plot,))
