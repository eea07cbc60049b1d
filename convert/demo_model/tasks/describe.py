"""Describe a record of attributes in one to three sentences of plain English.

The content alone decides the text: the number of attributes and the role of the first one decide
how many sentences there are, the first attribute of each sentence decides how it begins, and
opposite moods of neighbouring values decide between "and" and "but". Held out for the test split
are whole sets of attributes of a kind and pairs of a kind and a sentence plan.
"""

import random
import zlib
from itertools import combinations, pairwise, product

from .item import Item, Split
from .record_kinds import KINDS, Attribute, Group, Kind, fill

NAME = "describe"
INSTRUCTION = "Describe this record in plain English."

# How many attributes each sentence states, by their number and the first one's role.
SENTENCE_SIZES = {
    3: {"A": (3,), "P": (2, 1), "V": (3,), "B": (2, 1)},
    4: {"A": (2, 2), "P": (3, 1), "V": (2, 2), "B": (1, 3)},
    5: {"A": (2, 3), "P": (3, 2), "V": (3, 2), "B": (2, 2, 1)},
    6: {"A": (3, 3), "P": (2, 2, 2), "V": (3, 3), "B": (2, 3, 1)},
    7: {"A": (3, 2, 2), "P": (3, 3, 1), "V": (3, 2, 2), "B": (3, 2, 2)},
}
COUNTS, COUNT_WEIGHTS = (3, 4, 5, 6, 7), (22, 28, 25, 17, 8)
SHORTEST, LONGEST = 80, 220


def _set_template(kind: Kind, attributes: list[Attribute] | tuple[Attribute, ...]) -> str:
    return f"set:{kind.noun}:" + "+".join(sorted(attribute.name for attribute in attributes))


def _plan(heads: tuple[str, ...] | list[str], sizes: tuple[int, ...]) -> str:
    return "-".join(f"{role}{size}" for role, size in zip(heads, sizes, strict=True))


def _all_templates() -> list[str]:
    """Every attribute set of every kind and every sentence plan that the kind allows."""
    templates = []
    for kind in KINDS:
        roles = [attribute.role for attribute in kind.attributes]
        for count in COUNTS:
            for chosen in combinations(kind.attributes, count):
                templates.append(_set_template(kind, chosen))
            for first, sizes in SENTENCE_SIZES[count].items():
                for rest in product("ABPV", repeat=len(sizes) - 1):
                    heads = (first, *rest)
                    if all(heads.count(role) <= roles.count(role) for role in heads):
                        templates.append(f"plan:{kind.noun}:{_plan(heads, sizes)}")
    return templates


def _held_out(template: str) -> bool:
    """Tell whether the template is kept for the test split: about one in seven."""
    return zlib.crc32(template.encode()) % 7 == 3


_TEMPLATES = _all_templates()
TRAIN_TEMPLATES = tuple(template for template in _TEMPLATES if not _held_out(template))
TEST_TEMPLATES = tuple(template for template in _TEMPLATES if _held_out(template))


class _Fact:
    """One attribute with its value, put into words."""

    def __init__(self, kind: Kind, attribute: Attribute, group: Group, value: str) -> None:
        self.label = f"{attribute.name}[{value}]"
        self.role = attribute.role
        self.mood = group.mood
        if attribute.role == "A":
            self.adjective = group.verb
            self.verb = f"is {group.verb}"
            self.modifier = f"{kind.relative} is {group.verb}"
        else:
            self.verb = group.verb.replace("{}", value)
            self.modifier = group.modifier.replace("{}", value)


def _article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def _upper(phrase: str) -> str:
    return phrase[0].upper() + phrase[1:]


def _link(left: _Fact, right: _Fact) -> str:
    return "but" if left.mood * right.mood < 0 else "and"


def _join(facts: list[_Fact]) -> str:
    """The verb phrases of one to three facts, joined by "and" or "but"."""
    verbs = [fact.verb for fact in facts]
    links = [_link(left, right) for left, right in pairwise(facts)]
    if len(verbs) < 3:
        return f" {links[0]} ".join(verbs) if links else verbs[0]
    if links == ["and", "and"]:
        return f"{verbs[0]}, {verbs[1]} and {verbs[2]}"
    if links[0] == "but":
        return f"{verbs[0]} but {verbs[1]} and {verbs[2]}"
    return f"{verbs[0]} and {verbs[1]}, but {verbs[2]}"


def _first_sentence(kind: Kind, name: str, facts: list[_Fact]) -> str:
    head, rest = facts[0], facts[1:]
    if head.role == "A":
        text = f"{name} is {_article(head.adjective + ' ' + kind.noun)} {rest[0].modifier}"
        return text + "".join(f" {_link(rest[0], fact)} {fact.verb}" for fact in rest[1:])
    if head.role == "P":
        return f"{_upper(head.modifier)}, the {kind.noun} {name} {_join(rest)}"
    if head.role == "V":
        return f"{name}, {_article(kind.noun)} {head.modifier}, {_join(rest)}"
    return f"The {kind.noun} {name} {_join(facts)}"


def _later_sentence(kind: Kind, subject: str, facts: list[_Fact], previous: _Fact) -> str:
    head, rest = facts[0], facts[1:]
    if head.role == "A" and rest:
        return f"This {head.adjective} {kind.noun} {_join(rest)}"
    if head.role == "P" and rest:
        return f"{_upper(head.modifier)}, {subject} {_join(rest)}"
    if head.role == "B" and head.mood > 0:
        return f"{_upper(subject)} also {_join(facts)}"
    if head.role == "B":
        opening = "In addition" if previous.mood < 0 else "However"
        return f"{opening}, {subject} {_join(facts)}"
    return f"{_upper(subject)} {_join(facts)}"


def _describe(kind: Kind, name: str, facts: list[_Fact], sizes: tuple[int, ...]) -> str:
    pronoun = name.split()[0] if kind.relative == "who" else "it"
    sentences = [_first_sentence(kind, name, facts[: sizes[0]])]
    start = sizes[0]
    for size, subject in zip(sizes[1:], (pronoun, f"the {kind.noun}"), strict=False):
        part = facts[start : start + size]
        sentences.append(_later_sentence(kind, subject, part, facts[start - 1]))
        start += size
    return ". ".join(sentences) + "."


def make(rng: random.Random, split: Split) -> Item:
    """One record and its description."""
    while True:
        kind = rng.choice(KINDS)
        count = rng.choices(COUNTS, COUNT_WEIGHTS)[0]
        attributes = rng.sample(kind.attributes, count)
        sizes = SENTENCE_SIZES[count][attributes[0].role]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        plan = _plan([attributes[start].role for start in starts], sizes)
        templates = (_set_template(kind, attributes), f"plan:{kind.noun}:{plan}")
        if any(map(_held_out, templates)) != (split == "test"):
            continue
        name = fill(rng, rng.choice(kind.name_patterns))
        facts = []
        for attribute in attributes:
            group = rng.choice(attribute.groups)
            facts.append(_Fact(kind, attribute, group, fill(rng, rng.choice(group.patterns))))
        content = ", ".join([f"name[{name}]", *(fact.label for fact in facts)])
        target = _describe(kind, name, facts, sizes)
        if SHORTEST <= len(target) <= LONGEST and 40 <= len(content) <= 350:
            return Item(NAME, content, target, templates)
