"""The grammar that the rewriting tasks (friendly, professional, concise) share.

A message is one to three clauses. A clause has a kind (request, offer, refusal, ...), a phrasing
row of that kind, and slots (an action, a document, a time, a reason, ...) that are filled once
and then written in the source register as content and in the target register as target. A task
gives its phrasings as text, one block per row: source phrasings, one per line, then ``=>`` and
the only target phrasing that they map to. A leading ``*`` marks a source phrasing held out of
training. Orders of two clause kinds are held out as well, the same ones for every task.
"""

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from . import names
from .item import Item, Split

KINDS = """request offer update refusal apology question reminder thanks schedule complaint
suggestion invitation""".split()

TOPICS = """budget sales marketing onboarding training travel safety security product design
customer supplier hiring payroll tax audit inventory shipping warehouse research survey pricing
launch press website newsletter holiday overtime parking cleaning catering insurance legal partner
investor board team project migration backup testing release support feedback complaints quality
compliance energy recycling equipment furniture office factory store fleet delivery packaging
booking membership event conference sponsor charity wellness lunch quarterly annual monthly weekly
regional revised updated final draft internal external spring summer autumn winter""".split()

DOCUMENTS = """report plan proposal invoice contract summary agenda checklist schedule spreadsheet
estimate forecast brochure flyer policy guide handbook form list file folder presentation memo
letter template chart diagram overview analysis roadmap timeline roster questionnaire quote receipt
statement script poster banner manual review sheet database archive catalog outline worksheet
dashboard logbook calendar leaflet""".split()
PLURALS = """slides numbers figures notes documents photos contracts invoices receipts samples
results forms badges labels tickets drafts files records letters orders quotes reports""".split()

EVENTS = """meeting review workshop call demo interview seminar briefing session kickoff webinar
walkthrough retreat visit tour lunch breakfast dinner hearing rehearsal inspection
debrief roundtable ceremony reception""".split()

THINGS = """printer|projector|scanner|coffee machine|server|laptop|heating|elevator|alarm|door lock
microphone|keyboard|router|phone line|camera|air conditioner|login page|payment form|search box
mailing list|shared drive|booking system|time clock|card reader|badge scanner|dishwasher|freezer
loading dock|forklift|label maker|shredder|whiteboard|chat app|video link|test account|web shop
contact form|power supply|water cooler|fire door|ticket system|sync tool|sign-in kiosk
meeting room|parking gate|mail server|network cable|wall display""".replace("\n", "|").split("|")
PLACES = """lobby basement warehouse kitchen reception archive lab studio workshop
canteen garage showroom library hallway cafeteria""".split()

FAULTS = """keeps crashing|does not work|is making a strange noise|is broken|is not responding
has been down since {past}|does not turn on|needs a new part|shows the wrong time|is very slow
stopped working {past}|is stuck on an old version|has not been fixed|is leaking|is locked
shows error {num}|loses its connection every {num} minutes|has failed {num} times this week
was moved without notice|is still waiting for a spare part|rejects every password|is too loud
needs a reset every morning|does not save any changes""".replace("\n", "|").split("|")
FLAWS = """is missing {num} pages|has {num} wrong totals|has the wrong date on it|is out of date
does not match our records|is not signed|still lists {person} as the owner|is hard to read
has not been approved|is based on old prices|leaves out {company}|was sent to the wrong address
contains {num} typos|does not open on my laptop|has not arrived|names the wrong supplier
is not complete|was printed in the wrong size|skips the part about {company}
ends on page {num}""".replace("\n", "|").split("|")
SUPPLIES = """chairs|desks|badges|notebooks|lunch boxes|name tags|cables|headsets|monitors|batteries
pens|folders|boxes|tables|lamps|keys|posters|gift cards|coffee cups|helmets|gloves|envelopes|stamps
water bottles|sandwiches|adapters|whiteboards|key cards|safety vests|ink cartridges|spare parts
flash drives|umbrellas|vouchers|train tickets|permits""".replace("\n", "|").split("|")
AWAY = """on leave|out of the office|on vacation|off sick|traveling|busy with interviews|on a course
fully booked|visiting {company}|working from home|at the dentist|in court|on the night shift
tied up in meetings|covering for {person}|stuck at the airport""".replace("\n", "|").split("|")
STATES = """stuck|behind|not finished|almost done|not happy|swamped|not familiar|new to working
running late|still busy|having trouble""".replace("\n", "|").split("|")

# Base form, past tense and -ing form.
DOCUMENT_VERBS = """review reviewed reviewing,check checked checking,update updated updating,
print printed printing,share shared sharing,sign signed signing,approve approved approving,
finish finished finishing,translate translated translating,edit edited editing,
proofread proofread proofreading,scan scanned scanning,format formatted formatting,
correct corrected correcting,summarize summarized summarizing,file filed filing,
upload uploaded uploading,rename renamed renaming,shorten shortened shortening,
copy copied copying,analyze analyzed analyzing,discuss discussed discussing,
explain explained explaining,test tested testing,prepare prepared preparing,
publish published publishing,revise revised revising,replace replaced replacing,
download downloaded downloading,assess assessed assessing,change changed changing"""
GIVE_VERBS = """send sent sending,forward forwarded forwarding,email emailed emailing,
mail mailed mailing,deliver delivered delivering,show showed showing,bring brought bringing,
return returned returning,submit submitted submitting,present presented presenting"""
PERSON_VERBS = """call called calling,ask asked asking,brief briefed briefing,
remind reminded reminding,contact contacted contacting,email emailed emailing,
warn warned warning,tell told telling,message messaged messaging,text texted texting"""
EVENT_VERBS = """plan planned planning,record recorded recording,host hosted hosting,
lead led leading,prepare prepared preparing,cancel canceled canceling,attend attended attending,
organize organized organizing,announce announced announcing,
cover covered covering"""
THING_VERBS = """repair repaired repairing,move moved moving,replace replaced replacing,
clean cleaned cleaning,restart restarted restarting,test tested testing,
inspect inspected inspecting,unplug unplugged unplugging,install installed installing,
label labeled labeling"""
SUPPLY_VERBS = """order ordered ordering,buy bought buying,collect collected collecting,
count counted counting,pack packed packing,reserve reserved reserving,store stored storing,
unpack unpacked unpacking,ship shipped shipping,sort sorted sorting"""

# What a wordy writer says instead of a plain verb: a light verb's three forms, and a noun.
_MAKE, _GIVE, _HAVE = "make made making", "give gave giving", "have had having"
_CARRY, _CONDUCT = "carry_out carried_out carrying_out", "conduct conducted conducting"
_PROVIDE = "provide provided providing"
LIGHT_VERBS = {
    "review": (_CARRY, "a review of"),
    "check": (_CARRY, "a check of"),
    "update": (_MAKE, "an update to"),
    "edit": (_MAKE, "some edits to"),
    "correct": (_MAKE, "corrections to"),
    "change": (_MAKE, "a change to"),
    "revise": (_MAKE, "revisions to"),
    "copy": (_MAKE, "a copy of"),
    "approve": (_GIVE, "approval to"),
    "summarize": (_PROVIDE, "a summary of"),
    "translate": (_PROVIDE, "a translation of"),
    "explain": (_PROVIDE, "an explanation of"),
    "analyze": (_CONDUCT, "an analysis of"),
    "assess": (_CONDUCT, "an assessment of"),
    "test": (_CONDUCT, "a test of"),
    "inspect": (_CARRY, "an inspection of"),
    "repair": (_CARRY, "a repair of"),
    "discuss": (_HAVE, "a discussion about"),
    "call": (_MAKE, "a phone call to"),
}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()
MONTHS = "January February March April June July August September October November December".split()


def _verbs(text: str) -> list[list[str]]:
    return [entry.split() for entry in text.replace("\n", "").split(",")]


_DOCUMENT, _GIVING, _PERSON = _verbs(DOCUMENT_VERBS), _verbs(GIVE_VERBS), _verbs(PERSON_VERBS)
_EVENT, _THING, _SUPPLY = _verbs(EVENT_VERBS), _verbs(THING_VERBS), _verbs(SUPPLY_VERBS)


def document(rng: random.Random, owner: str = "our", plural: bool | None = None) -> str:
    """A document with its determiner, such as ``the budget plan for Tosk``."""
    if plural is None:
        plural = rng.random() < 0.3
    who = rng.choice(("the", "the", "the", owner, f"{names.person(rng)}'s"))
    text = f"{who} {rng.choice(TOPICS)} {rng.choice(PLURALS if plural else DOCUMENTS)}"
    tail = rng.random()
    if tail < 0.5:
        text += f" for {names.coined(rng)}"
    elif tail < 0.7 and "'s" not in who:
        text += f" from {names.person(rng)}"
    return text


def event(rng: random.Random) -> str:
    """A meeting of some kind, such as ``the press briefing with Mara``."""
    text = f"the {rng.choice(TOPICS)} {rng.choice(EVENTS)}"
    tail = rng.random()
    if tail < 0.35:
        text += f" with {names.person(rng)}"
    elif tail < 0.7:
        text += f" at {names.coined(rng)}"
    return text


def thing(rng: random.Random) -> str:
    """A device or a system."""
    text = f"the {rng.choice(THINGS)}"
    tail = rng.random()
    if tail < 0.4:
        text += f" in the {rng.choice(PLACES)}"
    elif tail < 0.8:
        text += f" from {names.coined(rng)}"
    return text


def supplies(rng: random.Random) -> str:
    """A number of things to buy or carry."""
    text = f"{rng.randint(3, 90)} {rng.choice(SUPPLIES)}"
    return text + (f" for {event(rng)}" if rng.random() < 0.4 else "")


def action(rng: random.Random, form: int, owner: str) -> str:
    """A verb phrase: ``form`` 0 is the base form, 1 the past tense, 2 the -ing form.

    ``[check|carry out a check of]`` offers a plain and a wordy choice; see ``plain``.
    """
    kind = rng.random()
    if kind < 0.36:
        verb, rest = rng.choice(_DOCUMENT), document(rng, owner)
    elif kind < 0.52:
        verb, rest = rng.choice(_GIVING), f"{document(rng, owner)} to {names.person(rng)}"
    elif kind < 0.64:
        about = document(rng, owner) if rng.random() < 0.5 else event(rng)
        verb, rest = rng.choice(_PERSON), f"{names.person(rng)} about {about}"
    elif kind < 0.76:
        verb, rest = rng.choice(_EVENT), event(rng)
    elif kind < 0.88:
        verb, rest = rng.choice(_THING), thing(rng)
    else:
        verb, rest = rng.choice(_SUPPLY), supplies(rng)
    if verb[0] in LIGHT_VERBS:
        light, noun = LIGHT_VERBS[verb[0]]
        return f"[{verb[form]}|{light.split()[form].replace('_', ' ')} {noun}] {rest}"
    return f"{verb[form]} {rest}"


def clock(rng: random.Random) -> str:
    """A time of a working day."""
    hour = rng.randint(8, 17)
    minute = rng.choice(("", "", ":15", ":30", ":45"))
    return f"{hour if hour < 13 else hour - 12}{minute} {'am' if hour < 12 else 'pm'}"


def day(rng: random.Random) -> str:
    """A day or a date, as it follows ``on`` or ``by``."""
    pick = rng.random()
    if pick < 0.5:
        return rng.choice(DAYS)
    if pick < 0.7:
        return f"{rng.choice(DAYS)} {rng.choice(('morning', 'afternoon'))}"
    return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"


def when(rng: random.Random) -> str:
    """A point in the future, with its preposition."""
    pick = rng.random()
    if pick < 0.25:
        return rng.choice(("tomorrow", "tomorrow morning", "next week", "this afternoon", "today"))
    if pick < 0.5:
        return f"at {clock(rng)} on {rng.choice(DAYS)}"
    return f"on {day(rng)}"


def due(rng: random.Random) -> str:
    """A deadline, with its preposition."""
    pick = rng.random()
    if pick < 0.2:
        return rng.choice(("as soon as possible", "today", "this week", "by tomorrow", "by noon"))
    if pick < 0.4:
        return f"by {clock(rng)} on {rng.choice(DAYS)}"
    if pick < 0.55:
        return f"before {event(rng)}"
    return f"by {day(rng)}"


def past(rng: random.Random) -> str:
    """A point in the past."""
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(("yesterday", "last week", "last month", "yesterday morning"))
    return f"last {rng.choice(DAYS)}"


def reason(rng: random.Random) -> str:
    """A short clause that can follow ``because``."""
    pick = rng.randrange(6)
    if pick == 0:
        return f"{thing(rng)} {fill(rng, rng.choice(FAULTS))}"
    if pick == 1:
        return f"{names.person(rng)} is {fill(rng, rng.choice(AWAY))} {when(rng)}"
    if pick == 2:
        return f"{names.coined(rng)} needs {document(rng)} {due(rng)}"
    if pick == 3:
        return f"we are still missing {rng.choice((document, supplies))(rng)}"
    if pick == 4:
        return f"I am {rng.choice(STATES)} with {document(rng, 'my')}"
    return f"{document(rng, plural=False)} {fill(rng, rng.choice(FLAWS))}"


def _why(rng: random.Random) -> str:
    return f" {rng.choice(('because', 'since'))} {reason(rng)}" if rng.random() < 0.4 else ""


def _maybe(make: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda rng: f" {make(rng)}" if rng.random() < 0.7 else ""


SLOTS: dict[str, Callable[[random.Random], str]] = {
    "do_you": lambda rng: action(rng, 0, "my"),
    "do_me": lambda rng: action(rng, 0, "your"),
    "do_we": lambda rng: action(rng, 0, "our"),
    "did": lambda rng: action(rng, 1, "our"),
    "doing_you": lambda rng: action(rng, 2, "my"),
    "doing_me": lambda rng: action(rng, 2, "your"),
    "doc": document,
    "doc1": lambda rng: document(rng, plural=False),
    "event": event,
    "thing": thing,
    "fault": lambda rng: fill(rng, rng.choice(FAULTS)),
    "flaw": lambda rng: fill(rng, rng.choice(FLAWS)),
    "when": _maybe(when),
    "on": when,
    "due": _maybe(due),
    "past": past,
    "day": day,
    "time": lambda rng: f"{clock(rng)} on {rng.choice(DAYS)}",
    "why": _why,
    "person": names.person,
    "company": names.coined,
    "num": lambda rng: str(rng.randint(2, 19)),
}


def slots_of(rng: random.Random, frame: str) -> dict[str, str]:
    """A value for every slot of ``frame``; ``{day2}`` is a second slot of the type ``day``."""
    found = dict.fromkeys(re.findall(r"\{(\w+)\}", frame))
    return {name: SLOTS.get(name, SLOTS.get(name[:-1], names.person))(rng) for name in found}


def put(frame: str, values: dict[str, str]) -> str:
    """``frame`` with its slots filled."""
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], frame)


def fill(rng: random.Random, frame: str) -> str:
    """``frame`` with new values in its slots."""
    return put(frame, slots_of(rng, frame))


def plain(text: str) -> str:
    """``text`` with the plain one of every ``[plain|wordy]`` choice."""
    return re.sub(r"\[([^|]*)\|[^]]*\]", r"\1", text)


def sentence(text: str) -> str:
    """``text`` with a capital letter first."""
    return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Phrasing:
    """One way to say a clause of ``kind`` in the source register, and its only rewriting."""

    kind: str
    name: str
    source: str
    target: str
    held_out: bool


def parse(text: str) -> dict[str, list[Phrasing]]:
    """The phrasings of a task's table, by clause kind."""
    table: dict[str, list[Phrasing]] = {}
    kind, row, sources = "", 0, []
    for line in text.strip().splitlines():
        if line.startswith("#"):
            kind, row = line[1:].strip(), 0
            table[kind] = []
        elif line.startswith("=>"):
            for number, source in enumerate(sources):
                name, held = f"say:{kind}.{row}.{number}", source.startswith("*")
                phrasing = Phrasing(kind, name, source.lstrip("* "), line[2:].strip(), held)
                table[kind].append(phrasing)
            row, sources = row + 1, []
        elif line:
            sources.append(line)
    return table


def _held_out_order(first: str, second: str) -> bool:
    return (5 * KINDS.index(first) + 3 * KINDS.index(second)) % 7 == 1


_ORDERS = [(a, b) for a in KINDS for b in KINDS if a != b]
_NEXT = {
    split: {a: [b for x, b in _ORDERS if x == a and _held_out_order(a, b) == held] for a in KINDS}
    for split, held in (("train", False), ("test", True))
}


def _plan(rng: random.Random, held_out: bool) -> list[str]:
    """One to three clause kinds; a held-out plan has a held-out order of its first two kinds."""
    kinds = [rng.choice(KINDS)]
    if held_out:
        kinds = [rng.choice([kind for kind in KINDS if _NEXT["test"][kind]])]
        kinds.append(rng.choice(_NEXT["test"][kinds[0]]))
    for _ in range(rng.choice((1, 2, 2, 2, 3, 3)) - len(kinds)):
        kinds.append(rng.choice([k for k in _NEXT["train"][kinds[-1]] if k not in kinds]))
    return kinds


@dataclass(frozen=True)
class Task:
    """Additions of a rewriting task to the grammar.

    Args:
        name: the task's name.
        table: the phrasings by clause kind.
        dress: a slot's value in the source register; may use the generator freely.
        finish: a slot's value in the target register.
        assemble: content and target from the clause kinds and the clauses on both sides.
    """

    name: str
    table: dict[str, list[Phrasing]]
    dress: Callable[[random.Random, str], str]
    finish: Callable[[str], str]
    assemble: Callable[[random.Random, list[str], list[str], list[str]], tuple[str, str]]

    def templates(self, split: Split) -> tuple[str, ...]:
        """The identifiers of a split's phrasings and clause orders."""
        held = split == "test"
        says = [p.name for row in self.table.values() for p in row if p.held_out == held]
        orders = [f"order:{a}>{b}" for a, b in _ORDERS if _held_out_order(a, b) == held]
        singles = [] if held else [f"order:{kind}" for kind in KINDS]
        return tuple(says + orders + singles)

    def make(self, rng: random.Random, split: Split) -> Item:
        """One item whose content and target have a suitable length."""
        while True:
            item = self._draft(rng, split)
            if 40 <= len(item.content) <= 350 and 55 <= len(item.target) <= 230:
                return item

    def _draft(self, rng: random.Random, split: Split) -> Item:
        new_order = split == "test" and rng.random() < 0.5
        kinds = _plan(rng, new_order)
        new_phrasing = rng.randrange(len(kinds)) if split == "test" and not new_order else -1
        used = [f"order:{a}>{b}" for a, b in itertools.pairwise(kinds)]
        used = used or [f"order:{kinds[0]}"]
        sources, targets = [], []
        for place, kind in enumerate(kinds):
            held = place == new_phrasing
            phrasing = rng.choice([p for p in self.table[kind] if p.held_out == held])
            values = slots_of(rng, phrasing.source)
            sources.append(put(phrasing.source, {k: self.dress(rng, v) for k, v in values.items()}))
            targets.append(put(phrasing.target, {k: self.finish(v) for k, v in values.items()}))
            used.append(phrasing.name)
        content, target = self.assemble(rng, kinds, sources, targets)
        return Item(self.name, content, target, tuple(used))
