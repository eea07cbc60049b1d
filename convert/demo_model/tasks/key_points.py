"""List the key points of a dialogue or of a short status message.

The content is a dialogue such as ``Ana: ... Ben: ...`` or a message of three or four sentences by
one person; the target is ``- point one; - point two; - point three`` in the order of the content,
without greetings and small talk. Held out are pairs of act and outcome of the dialogues, and
sequences of three kinds of fact of the messages; each kind occurs in training in other sequences.
"""

import itertools
import random

from . import dialogues, names
from .dialogues import Facts
from .item import Item, Split

NAME = "key_points"
INSTRUCTION = "List the key points of this text."

# For every kind of fact: ways of saying it, each with its key point.
KINDS = {
    "done": (
        ("I have {jobbed}.", "done: {job}"),
        ("{c} and I {jobbed}.", "{c} helped to {job}"),
        ("We finally finished {doc} for {company}.", "finished: {doc} for {company}"),
    ),
    "next": (
        ("Next, I will {job}.", "next: {job}"),
        ("I plan to {job} and then to {job2}.", "plan: {job}; - then: {job2}"),
        ("My next task is {jobbing}.", "next task: {jobbing}"),
    ),
    "blocked": (
        ("I am still waiting for {doc} from {c}.", "waiting for {doc} from {c}"),
        ("I can't {job} because {clause}.", "blocked: {clause}, so can't {job}"),
        ("Without {items} I can't {job}.", "{items} needed to {job}"),
    ),
    "news": (
        ("Please note that {clause}.", "note: {clause}"),
        ("{c} told me that {clause}.", "{c} says that {clause}"),
        ("Bad news, {trouble}.", "problem: {trouble}"),
    ),
    "request": (
        ("Could somebody {job}?", "somebody should {job}"),
        ("Please send {doc} to {c} {by}.", "send {doc} to {c} {by}"),
        ("{c}, would you mind {jobbing}?", "{c} should {job}"),
    ),
    "meeting": (
        ("Let's meet {when} in {room}.", "meeting {when} in {room}"),
        ("The {event} starts {when}.", "{event} {when}"),
        ("The {event} has moved from {day} to {day2}.", "{event} moved from {day} to {day2}"),
    ),
    "money": (
        ("We spent {money} on {items}.", "spent: {money} on {items}"),
        ("{company} will pay us {money} {by}.", "{money} from {company} {by}"),
        ("The {service} costs {money} more than planned.", "{service} costs {money} more"),
    ),
    "absence": (
        ("I am away from {day} to {day2}.", "away from {day} to {day2}"),
        ("I will be in {city} {when}. Call {c} instead.", "in {city} {when}; - call {c} instead"),
        ("{c} covers for me until {day}.", "{c} covers until {day}"),
    ),
    "decision": (
        ("We chose {company} for the {service}.", "{company} chosen for the {service}"),
        ("We decided not to {job}.", "decision: do not {job}"),
        ("{c} wants to {job}, and I agree.", "agreed: {c} will {job}"),
    ),
}
OPENINGS = ("Hi all.", "Hello team!", "Good morning, everyone.", "A short update from {city}.")
OPENINGS += ("I hope you had a nice {day}.", "What a busy week!", "Hi {c}, here is my status.")
CLOSINGS = ("Thanks!", "Best, {c}", "Have a nice weekend!", "See you soon.", "Regards, {c}")

_SEQUENCES = list(enumerate(itertools.permutations(KINDS, 3)))
TRAIN_MESSAGES = tuple("message/" + "+".join(kinds) for row, kinds in _SEQUENCES if row % 5)
TEST_MESSAGES = tuple("message/" + "+".join(kinds) for row, kinds in _SEQUENCES if row % 5 == 0)
TRAIN_TEMPLATES = dialogues.TRAIN_PLOTS + TRAIN_MESSAGES
TEST_TEMPLATES = dialogues.TEST_PLOTS + TEST_MESSAGES


def _message(rng: random.Random, split: Split) -> tuple[str, tuple[str, ...], str]:
    """A status message, its key points and its template."""
    template = rng.choice(TRAIN_MESSAGES if split == "train" else TEST_MESSAGES)
    others = names.people(rng, 24)
    sentences, points = [], []
    if rng.random() < 0.5:
        sentences.append(rng.choice(OPENINGS).format_map(Facts(rng, {}, others)))
    for kind in template.removeprefix("message/").split("+"):
        said, point = rng.choice(KINDS[kind])
        facts = Facts(rng, {}, others)
        sentences.append(said.format_map(facts))
        points.append(point.format_map(facts))
    if rng.random() < 0.4:
        sentences.append(rng.choice(CLOSINGS).format_map(Facts(rng, {}, others)))
    return dialogues.capitalise(" ".join(sentences)), tuple(points), template


def make(rng: random.Random, split: Split) -> Item:
    """One dialogue or message and its key points."""
    as_dialogue = rng.random() < 0.5
    while True:
        if as_dialogue:
            talk = dialogues.dialogue(rng, split)
            text, points, template = talk.text, talk.points, talk.plot
        else:
            text, points, template = _message(rng, split)
        target = "- " + "; - ".join(points)
        if 40 <= len(text) <= 350 and 60 <= len(target) <= 220:
            return Item(NAME, text, target, (template,))
