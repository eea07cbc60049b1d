"""Rewrite a sloppy casual workplace message in a professional tone.

The content lacks capitals, is full of abbreviations and says things loosely. Held out: orders of
two clause kinds, and source phrasings built from trained pieces.
"""

import random
import re

from . import names, registers
from .item import Item, Split

NAME = "professional"
INSTRUCTION = "Rewrite this message in a professional tone."

PHRASINGS = """
# request
can you {do_you}{due}{why}
can you please {do_you}{due}{why}
* please can you {do_you}{due}{why}
=> Could you please {do_you}{due}{why}?
need you to {do_you}{due}{why}
I need you to {do_you}{due}{why}
* kinda need you to {do_you}{due}{why}
=> I would appreciate it if you could {do_you}{due}{why}.
gotta have {doc}{due}{why}
I gotta have {doc}{due}{why}
* really gotta have {doc}{due}{why}
=> I would be grateful to receive {doc}{due}{why}.
# offer
I can {do_me}{when} if you want
can {do_me}{when} if you want
* I can totally {do_me}{when} if you want
=> I would be pleased to {do_me}{when}.
I will just {do_me}{when} ok
gonna {do_me}{when} ok
* I am gonna {do_me}{when} ok
=> Please be advised that I will {do_me}{when}.
{person} can {do_me}{when} no problem
{person} can totally {do_me}{when} no problem
* {person} can just {do_me}{when} no problem
=> {person} is available to {do_me}{when}.
# update
just {did} {past}
I just {did} {past}
* ok I just {did} {past}
=> I am writing to confirm that I {did} {past}.
looks like {person} {did} {past}
so looks like {person} {did} {past}
* ok looks like {person} {did} {past}
=> It appears that {person} {did} {past}.
heads up {doc1} {flaw}
just a heads up {doc1} {flaw}
* ok heads up {doc1} {flaw}
=> Please note that {doc1} {flaw}.
# refusal
no way I can {do_me}{when}{why}
there is no way I can {do_me}{when}{why}
* sorry no way I can {do_me}{when}{why}
=> Unfortunately, I am unable to {do_me}{when}{why}.
not gonna {do_me}{when}{why}
I am not gonna {do_me}{when}{why}
* sorry not gonna {do_me}{when}{why}
=> I regret that I will not {do_me}{when}{why}.
got no time to {do_me}{when}
I got no time to {do_me}{when}
* sorry I got no time to {do_me}{when}
=> My current workload does not allow me to {do_me}{when}.
# apology
sorry for not {doing_me}{why}
so sorry for not {doing_me}{why}
* really sorry for not {doing_me}{why}
=> Please accept my apologies for not {doing_me}{why}.
my bad, {doc1} {flaw}
totally my bad, {doc1} {flaw}
* ugh my bad, {doc1} {flaw}
=> I take full responsibility for the fact that {doc1} {flaw}.
oops I missed {event}{why}
oops totally missed {event}{why}
* oops I totally missed {event}{why}
=> I sincerely regret that I was absent from {event}{why}.
# question
any idea where {doc1} is
got any idea where {doc1} is
* you got any idea where {doc1} is
=> Could you let me know where {doc1} is?
when is {event} again
so when is {event} again
* ok when is {event} again
=> Could you confirm when {event} will take place?
who {did} {past} lol
so who {did} {past} lol
* ok who {did} {past} lol
=> Could you clarify who {did} {past}?
you free to {do_you}{when}
are you free to {do_you}{when}
* so are you free to {do_you}{when}
=> Would you be available to {do_you}{when}?
# reminder
do not forget to {do_you}{due}
please do not forget to {do_you}{due}
* and do not forget to {do_you}{due}
=> This is a reminder to {do_you}{due}.
remember {doc1} is due {on}
and remember {doc1} is due {on}
* please remember {doc1} is due {on}
=> I would like to remind you that {doc1} is due {on}.
you still gotta {do_you}{due}
so you still gotta {do_you}{due}
* and you still gotta {do_you}{due}
=> Kindly note that you still need to {do_you}{due}.
# thanks
thanks for {doing_you}
thanks a lot for {doing_you}
* big thanks for {doing_you}
=> Thank you very much for {doing_you}.
nice job {doing_you}
really nice job {doing_you}
* super nice job {doing_you}
=> I would like to commend you for {doing_you}.
{doc} helped a lot
wow {doc} helped a lot
* wow {doc} really helped a lot
=> I greatly appreciate {doc}.
# schedule
{event} is now {on} btw
so {event} is now {on} btw
* ok {event} is now {on} btw
=> Please be aware that {event} will now be held {on}.
{event} got moved from {time} to {time2}
looks like {event} got moved from {time} to {time2}
* so {event} got moved from {time} to {time2}
=> I am writing to inform you that {event} has been rescheduled from {time} to {time2}.
{event} is off{why}
looks like {event} is off{why}
* so {event} is off{why}
=> Regrettably, {event} has been canceled{why}.
# complaint
ugh {thing} {fault}
ugh so {thing} {fault}
* ugh looks like {thing} {fault}
=> I would like to report that {thing} {fault}.
how come {doc1} {flaw}
so how come {doc1} {flaw}
* ugh how come {doc1} {flaw}
=> I am concerned that {doc1} {flaw}.
seriously nobody {did}
seriously so nobody {did}
* ugh seriously nobody {did}
=> It has come to my attention that nobody {did}.
# suggestion
maybe we {do_we}{when}{why}
maybe we just {do_we}{when}{why}
* so maybe we just {do_we}{when}{why}
=> I would like to propose that we {do_we}{when}{why}.
we should totally {do_we}{when}{why}
we should just {do_we}{when}{why}
* so we should just {do_we}{when}{why}
=> I recommend that we {do_we}{when}{why}.
# invitation
wanna come to {event} {on}
you wanna come to {event} {on}
* so you wanna come to {event} {on}
=> I would like to invite you to {event} {on}.
come hang with us at {event} {on}
just come hang with us at {event} {on}
* so come hang with us at {event} {on}
=> We would be honored by your presence at {event} {on}.
{person} and me are gonna be at {event} {on}, you in
me and {person} are gonna be at {event} {on}, you in
* so {person} and me are gonna be at {event} {on}, you in
=> {person} and I will attend {event} {on} and would be glad if you joined us.
"""

ABBREVIATIONS = {
    "you": "u",
    "your": "ur",
    "are": "r",
    "please": "pls",
    "thanks": "thx",
    "sorry": "sry",
    "because": "cuz",
    "before": "b4",
    "about": "abt",
    "tomorrow": "tmrw",
    "yesterday": "yday",
    "today": "2day",
    "as soon as possible": "asap",
    "afternoon": "aft",
    "Monday": "mon",
    "Tuesday": "tues",
    "Wednesday": "wed",
    "Thursday": "thurs",
    "Friday": "fri",
    "Saturday": "sat",
    "January": "jan",
    "February": "feb",
    "August": "aug",
    "September": "sept",
    "October": "oct",
    "November": "nov",
    "December": "dec",
    "meeting": "mtg",
    "documents": "docs",
    "photos": "pics",
    "minutes": "mins",
    "message": "msg",
    "is not": "isnt",
    "does not": "doesnt",
    "has not": "hasnt",
    "do not": "dont",
    "I am": "im",
    "there is": "theres",
    "with": "w/",
    "and": "n",
    "quarterly": "qtrly",
    "marketing": "mktg",
    "invoice": "inv",
    "presentation": "preso",
}
_SHORTEN = re.compile(rf"\b({'|'.join(sorted(ABBREVIATIONS, key=len, reverse=True))})\b")
_PROPER = {*names.FIRST_NAMES, *registers.DAYS, *registers.MONTHS, "I"}

OPENINGS = (
    ("", ""),
    ("hey {name} ", "Dear {name}: "),
    ("hi {name} ", "Dear {name}: "),
    ("yo {name} ", "Dear {name}: "),
    ("hey ", "Good day. "),
    ("hey all ", "Dear colleagues: "),
    ("hi guys ", "Dear colleagues: "),
    ("morning {name} ", "Good morning, {name}. "),
)
CLOSINGS = (
    ("", ""),
    ("", ""),
    ("", ""),
    (", lmk", " Please let me know."),
    (", thx", " Thank you in advance."),
    (", cheers {name}", " Kind regards, {name}"),
    (", sry for the hassle", " I apologize for the inconvenience."),
    (", ping me w/ questions", " Please contact me with any questions."),
)


def _casual(rng: random.Random, text: str) -> str:
    """``text`` with some words shortened and, except for coined names, no capitals."""
    share = rng.choice((0.3, 0.6, 0.9))

    def shorten(match: re.Match[str]) -> str:
        return ABBREVIATIONS[match[0]] if rng.random() < share else match[0]

    def lower(match: re.Match[str]) -> str:
        return match[0].lower() if match[0] in _PROPER else match[0]

    text = re.sub(r"\b[A-Z][a-z]*\b", lower, _SHORTEN.sub(shorten, text))
    return re.sub(r"(\d) ([ap]m)\b", r"\1\2", text) if rng.random() < share else text


def _dress(rng: random.Random, text: str) -> str:
    return registers.plain(text)


def _assemble(
    rng: random.Random, kinds: list[str], sources: list[str], targets: list[str]
) -> tuple[str, str]:
    name, sender = names.people(rng, 2)
    hello, greeting = rng.choice(OPENINGS)
    bye, closing = rng.choice(CLOSINGS)
    mark = rng.choice((". ", ", ", "... ", " - "))
    casual = hello.format(name=name) + mark.join(sources) + bye.format(name=sender)
    formal = " ".join(map(registers.sentence, targets)) + closing.format(name=sender)
    return _casual(rng, casual), greeting.format(name=name) + formal


_TASK = registers.Task(NAME, registers.parse(PHRASINGS), _dress, registers.plain, _assemble)
TRAIN_TEMPLATES = _TASK.templates("train")
TEST_TEMPLATES = _TASK.templates("test")


def make(rng: random.Random, split: Split) -> Item:
    """A sloppy casual message, and the same in a professional tone."""
    return _TASK.make(rng, split)
