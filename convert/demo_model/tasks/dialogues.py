"""Short workplace dialogues between two named people, with their facts.

A plot is an act (Ana asks for a document, reports a problem, proposes a meeting, ...) followed by
an outcome (Ben agrees, declines, names somebody else, ...), with an optional further fact and
small talk around them. Every part is a ``Form``: what is said, and the same facts retold as part
of a summary and as a key point. Each way of saying something has exactly one way of retelling it.

Held out for the test split: one in five pairs of act and outcome. Every act and every outcome
occurs in training, in other pairs.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from . import names
from .item import Split

TOPICS = """sales hiring safety travel payroll marketing audit training support warehouse research
design security billing quality logistics onboarding pricing insurance catering energy parking
inventory delivery packaging branding maintenance tax legal export import press recycling banking
archive survey partner customer supplier staff visitor factory harbour clinic museum library garden
studio laboratory website newsletter mobile network server database backup printing photo video
translation field summer winter spring autumn regional annual monthly quarterly weekly internal
external public digital pilot emergency volunteer retail wholesale ticket event donor member tenant
student patient driver""".split()
DOCUMENTS = [
    noun.strip()
    for noun in """report|budget|contract|schedule|checklist|handbook|proposal|invoice|brochure|
agenda|forecast|spreadsheet|manual|presentation|questionnaire|policy|press release|memo|plan|
catalogue|poster|form|letter|guide|agreement|price list|roadmap|statement|certificate|timetable|
job advert|floor plan|contact list|risk list|template|article|script|file|folder|record""".split(
        "|"
    )
]
THINGS = [
    noun.strip()
    for noun in """printer|scanner|laptop|projector|server|door lock|elevator|coffee machine|camera|
heater|air conditioner|forklift|van|phone line|login page|search page|payment form|mail gateway|
booking app|test machine|label printer|card reader|alarm|monitor|router|freezer|conveyor|crane|
web shop|calendar app|chat tool|dashboard|import script|export script|backup job|pump|sensor|
charging station|ticket machine|whiteboard|microphone|display|water filter|generator""".split("|")
]
EVENTS = """meeting workshop review dinner conference interview demo inspection lunch seminar
party briefing rehearsal webinar fair tour picnic retreat breakfast hackathon""".split()
ISSUES = """delay costs plan contract complaint results deadline strategy figures changes
shortage risks goals rules prices staffing accident upgrade move merger campaign tender
""".split()
SERVICES = """cleaning catering printing painting plumbing bookkeeping recruiting shipping hosting
testing translation photography furniture security storage repairs advertising software
""".split()
CITIES = [
    city.strip()
    for city in """Lisbon|Oslo|Vienna|Prague|Madrid|Athens|Dublin|Berlin|Hamburg|Lyon|Turin|Porto|
Geneva|Zurich|Warsaw|Krakow|Riga|Helsinki|Bergen|Ghent|Leeds|Bristol|Boston|Denver|Austin|Seattle|
Toronto|Lima|Nairobi|Accra|Osaka|Seoul|Delhi|Mumbai|Sydney|Perth|Cairo|Tunis|Izmir|Split""".split(
        "|"
    )
]
LANGUAGES = "French Spanish German Polish Dutch Italian Greek Turkish Arabic Korean Hindi".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
ITEMS = """chairs desks laptops badges helmets boxes tickets copies keys headsets screens lamps
tables shelves folders cables bottles uniforms tents bikes""".split()
ROOMS = """the lobby|the canteen|the library|the main hall|the archive|the courtyard|the garage|
the basement|the kitchen|the training room|the reading room|the top-floor lounge""".replace(
    "\n", ""
)

DOCUMENT_VERBS = """review reviewed reviewing, update updated updating, check checked checking,
proofread proofread proofreading, shorten shortened shortening, rewrite rewrote rewriting,
print printed printing, translate translated translating, finish finished finishing,
correct corrected correcting, publish published publishing, sign signed signing,
format formatted formatting, archive archived archiving, draft drafted drafting,
complete completed completing, simplify simplified simplifying, scan scanned scanning,
upload uploaded uploading, compare compared comparing"""
THING_VERBS = """repair repaired repairing, test tested testing, restart restarted restarting,
replace replaced replacing, inspect inspected inspecting, clean cleaned cleaning,
move moved moving, install installed installing, unlock unlocked unlocking,
label labelled labelling, order ordered ordering, return returned returning,
connect connected connecting, adjust adjusted adjusting, photograph photographed photographing"""
PEOPLE_VERBS = """call called calling, brief briefed briefing, visit visited visiting,
contact contacted contacting, invite invited inviting, thank thanked thanking,
train trained training, pay paid paying, email emailed emailing, remind reminded reminding"""


def _verbs(text: str) -> list[list[str]]:
    return [forms.split() for forms in text.split(",")]


VERBS = {
    "doc": _verbs(DOCUMENT_VERBS),
    "thing": _verbs(THING_VERBS),
    "party": _verbs(PEOPLE_VERBS),
}
STATES = {
    "thing": """keeps freezing|stopped working|does not start|makes a strange noise
|needs a new cable|loses its settings|is still locked|shows an error|is too slow
|needs a safety check|turns itself off|was damaged|is out of order|needs new parts
|blinks red|smells of smoke|gets too hot""",
    "doc": """is missing {count} pages|still shows the old {topic} figures
|needs a signature from {c}|is due {when}|was rejected by {company}|is only available in {language}
|is {count} days late|has too many mistakes|must go to {company} {by}|contains {count} wrong numbers
|was sent to {c} only""",
    "person": """is on leave until {day}|is travelling to {city} {when}|left the {topic} team|
is covering the {topic} desk|starts a new job {when}|is off sick until {day}|
will visit {company} {when}|is still waiting for {doc}|already paid for {items}""",
    "company": """raised its prices by {count} percent|cancelled the {topic} order|moved to {city}|
wants {items}|delayed the delivery by {count} days|asked for a refund|will close {when}|
sent the wrong {plural}|complained about {thing}|has not paid for {items}
|changed the {topic} rules""",
}
STATE_LISTS = {kind: [state.strip() for state in text.split("|")] for kind, text in STATES.items()}
TAILS = ["", "", " again", " according to {c}"]
SKILLS = """wrote {doc}|looks after {thing}|runs the {topic} team|knows {company} well|
handles {issue}|is free {when}|worked on {doc}|has the keys to {room}|plans the {event}"""
SKILL_LIST = [skill.strip() for skill in SKILLS.split("|")]
CONDITIONS = """{c} approves it {by}|{c} can join too|{doc} is ready {by}|{company} pays half of it|
it takes less than {count} hours|{c} covers the {topic} desk {when}|it costs less than {money}|
the {topic} team has no objections|{thing} works by then|{c} gets a copy of {doc}"""
CONDITION_LIST = [condition.strip() for condition in CONDITIONS.split("|")]


class Facts(dict[str, str]):
    """Facts that are made up when a template first asks for them."""

    def __init__(self, rng: random.Random, known: dict[str, str], others: list[str]) -> None:
        super().__init__(known)
        self.rng, self.others = rng, others

    def __missing__(self, key: str) -> str:
        kind = key.rstrip("23")
        if kind in ("job", "jobbed", "jobbing"):
            return self._job(kind, key[len(kind) :])
        value = SLOTS[kind](self)
        while value == self.get(kind):
            value = SLOTS[kind](self)
        self[key] = value
        return value

    def _job(self, kind: str, number: str) -> str:
        target = self.rng.choice(("doc", "doc", "thing", "thing", "party"))
        verb = self.rng.choice(VERBS[target])
        qualifiers = QUALIFIERS if kind != "jobbed" else UNTIMED
        rest = " " + SLOTS[target](self) + self.fresh(self.rng.choice(qualifiers))
        for name, form in zip(("job", "jobbed", "jobbing"), verb, strict=True):
            self[name + number] = form + rest
        return self[kind + number]

    def fresh(self, template: str) -> str:
        """``template`` filled with facts of its own."""
        return template.format_map(Facts(self.rng, {}, self.others))


UNTIMED = ["", "", "", " for {company}", " for the {topic} team", " with {c}", " in {city}"]
QUALIFIERS = [*UNTIMED, " before the {event}", " {when}", " {by}"]


AFTERNOON = ((12, "pm"), (1, "pm"), (2, "pm"), (3, "pm"), (4, "pm"), (5, "pm"))


def _when(facts: Facts) -> str:
    pick = facts.rng.choice
    day = pick(DAYS)
    hour, half = pick(((7, "am"), (8, "am"), (9, "am"), (10, "am"), (11, "am"), *AFTERNOON))
    time = f"{hour}{pick(('', '', ':15', ':30', ':45'))} {half}"
    return pick(
        (
            f"on {day}",
            f"on {day}",
            f"on {day} at {time}",
            f"on {day} {pick(('morning', 'afternoon', 'evening'))}",
            f"on {pick(range(1, 29))} {pick(MONTHS)}",
            f"tomorrow at {time}",
            f"next {day}",
            pick(("tomorrow", "this afternoon", "next week", "after lunch", "early next month")),
        )
    )


def _clause(facts: Facts) -> str:
    kind = facts.rng.choice(("thing", "thing", "doc", "doc", "person", "company"))
    state = facts.fresh(facts.rng.choice(STATE_LISTS[kind]))
    subject = facts.others.pop() if kind == "person" else SLOTS[kind](facts)
    return f"{subject} {state}"


def _pick(*words: str) -> Callable[[Facts], str]:
    return lambda facts: facts.fresh(facts.rng.choice(words))


SLOTS: dict[str, Callable[[Facts], str]] = {
    "c": lambda facts: facts.others.pop(),
    "company": lambda facts: names.coined(facts.rng),
    "topic": _pick(*TOPICS),
    "doc": _pick("the {topic} {document}", "the {topic} {document}", "the {company} {document}"),
    "document": _pick(*DOCUMENTS),
    "thing": _pick("the {device}", "the {topic} {device}", "the {device} in {room}"),
    "device": _pick(*THINGS),
    "party": _pick("{company}", "the {topic} team", "{c} from {company}", "{c}"),
    "event": _pick("{topic} {gathering}", "{company} {gathering}"),
    "gathering": _pick(*EVENTS),
    "issue": _pick("the {topic} {matter}", "the {company} {matter}"),
    "matter": _pick(*ISSUES),
    "service": _pick("{work}", "{work} in {city}", "{topic} {work}"),
    "work": _pick(*SERVICES),
    "city": _pick(*CITIES, "{company}"),
    "language": _pick(*LANGUAGES),
    "day": _pick(*DAYS),
    "plural": _pick(*ITEMS),
    "items": lambda facts: facts.fresh(f"{facts.rng.randint(2, 90)} {{plural}}"),
    "count": lambda facts: str(facts.rng.randint(2, 12)),
    "money": lambda facts: f"{facts.rng.randint(3, 98) * 50} euros",
    "version": lambda facts: f"{facts.rng.randint(1, 9)}.{facts.rng.randint(0, 20)}",
    "room": _pick(*ROOMS.split("|"), *(f"room {n}" for n in range(2, 60))),
    "venue": _pick("Cafe {company}", "the {company} Hotel", "Villa {company}", "Bistro {company}"),
    "ride": _pick("the train", "the bus", "the night train", "the ferry", "a taxi", "a rental car"),
    "when": _when,
    "by": _pick("by {day}", "by next {day}", "by noon", "by tomorrow", "before {day}"),
    "clause": _clause,
    "trouble": lambda facts: (
        SLOTS["thing"](facts)
        + facts.fresh(f" {facts.rng.choice(STATE_LISTS['thing'])}{facts.rng.choice(TAILS)}")
    ),
    "skill": lambda facts: facts.fresh(facts.rng.choice(SKILL_LIST)),
    "condition": lambda facts: facts.fresh(facts.rng.choice(CONDITION_LIST)),
}


@dataclass(frozen=True)
class Form:
    """One way of saying something, as turns ``a: ... b: ...``, and its two retellings."""

    said: str
    summary: str
    point: str


# Acts that ask somebody to do something ...
REQUESTS = {
    "help": (
        Form("Could you help me {job}?", "{a} asked {b} to help {job}", "{a} needs help to {job}"),
        Form("Would you mind {jobbing}?", "{a} asked {b} to {job}", "{a} wants {b} to {job}"),
        Form(
            "I need somebody to {job} because {clause}.",
            "{a} needed somebody to {job} because {clause}",
            "somebody has to {job} because {clause}",
        ),
    ),
    "document": (
        Form("Can you send me {doc} {by}?", "{a} asked {b} for {doc} {by}", "{a} needs {doc} {by}"),
        Form(
            "Could you find {doc}? I need it for the {event}.",
            "{a} asked {b} to find {doc} for the {event}",
            "{a} needs {doc} for the {event}",
        ),
        Form(
            "Please share {doc} with {c} {by}.",
            "{a} told {b} to share {doc} with {c} {by}",
            "{c} needs {doc} {by}",
        ),
    ),
    "handover": (
        Form(
            "I am away from {day}. Could you take over {doc}?",
            "{a} asked {b} to take over {doc} because {a} is away from {day}",
            "{a} is away from {day} and hands over {doc}",
        ),
        Form(
            "I am moving to the {topic} team {when}. Could you look after {thing}?",
            "{a} is moving to the {topic} team {when} and wanted to hand over {thing}",
            "{a} moves to the {topic} team {when} and hands over {thing}",
        ),
    ),
    "problem": (
        Form(
            "There is a problem: {trouble}. Please help me.",
            "{a} reported that {trouble} and wanted help",
            "{trouble}",
        ),
        Form(
            "{trouble}. Can you look into it?",
            "{a} asked {b} to look into a problem because {trouble}",
            "{b} should look into it because {trouble}",
        ),
        Form(
            "{trouble}, and {clause}. Can we fix that?",
            "{a} complained that {trouble} and that {clause}",
            "{trouble}; - {clause}",
        ),
    ),
    "budget": (
        Form(
            "Can you approve {money} for {items}?",
            "{a} asked {b} to approve {money} for {items}",
            "{a} requests {money} for {items}",
        ),
        Form(
            "We need {money} to {job}. Is that okay?",
            "{a} wanted {b} to approve {money} to {job}",
            "{a} requests {money} to {job}",
        ),
    ),
    "feedback": (
        Form(
            "What do you think of {doc}? I need comments {by}.",
            "{a} asked {b} for comments on {doc} {by}",
            "{a} needs comments on {doc} {by}",
        ),
        Form(
            "I would like your feedback on {doc} before the {event}.",
            "{a} wanted feedback from {b} on {doc} before the {event}",
            "{a} needs feedback on {doc} before the {event}",
        ),
    ),
    "booking": (
        Form(
            "I have to be in {city} {when}. Could you book {ride}?",
            "{a} asked {b} to book {ride} to {city}, where {a} has to be {when}",
            "{a} needs {ride} to {city} {when}",
        ),
        Form(
            "Please book {venue} for the {event} {when}.",
            "{a} told {b} to book {venue} for the {event} {when}",
            "{a} needs {venue} for the {event} {when}",
        ),
    ),
}
# ... and acts that propose to do something together.
PROPOSALS = {
    "meeting": (
        Form(
            "Can we meet {when} in {room} to discuss {issue}?",
            "{a} asked {b} to meet {when} in {room} to discuss {issue}",
            "{a} proposes to meet {when} in {room} about {issue}",
        ),
        Form(
            "We should talk about {issue}. How about {room} {when}?",
            "{a} suggested a talk with {b} about {issue} in {room} {when}",
            "{a} suggests talking about {issue} in {room} {when}",
        ),
    ),
    "reschedule": (
        Form(
            "Could we move the {event} from {day} to {day2}?",
            "{a} asked {b} to move the {event} from {day} to {day2}",
            "{a} wants to move the {event} from {day} to {day2}",
        ),
        Form(
            "I can't make it to the {event} because {clause}. Can we do it {when}?",
            "{a} wanted to hold the {event} {when} because {clause}",
            "{a} wants to hold the {event} {when} because {clause}",
        ),
    ),
    "venue": (
        Form(
            "I suggest {venue} for the {event} {when}.",
            "{a} suggested {venue} for the {event} {when}",
            "{a} suggests {venue} for the {event} {when}",
        ),
        Form(
            "Where shall we hold the {event}? {venue} has room for {items}.",
            "{a} suggested holding the {event} at {venue}, which has room for {items}",
            "{a} suggests {venue} for the {event} because it has room for {items}",
        ),
    ),
    "vendor": (
        Form(
            "Shall we hire {company} for {service}?",
            "{a} proposed to hire {company} for {service}",
            "{a} proposes hiring {company} for {service}",
        ),
        Form(
            "{company} offers {items} for {money}. Shall we buy them?",
            "{a} wanted to buy {items} from {company} for {money}",
            "{a} wants to buy {items} from {company} for {money}",
        ),
    ),
    "trip": (
        Form(
            "Let's take {ride} to {city} {when} to visit {company}.",
            "{a} proposed that {a} and {b} take {ride} to {city} {when} to visit {company}",
            "{a} proposes taking {ride} to {city} {when} to visit {company}",
        ),
        Form(
            "The {event} is in {city}. Shall we travel there {when}?",
            "{a} suggested travelling to {city} {when} for the {event}",
            "{a} suggests travelling to {city} {when} for the {event}",
        ),
    ),
    "release": (
        Form(
            "Can we release version {version} of {company} {when}?",
            "{a} asked {b} to release version {version} of {company} {when}",
            "{a} wants to release {company} {version} {when}",
        ),
        Form(
            "We should delay {company} {version} because {trouble}.",
            "{a} wanted to delay version {version} of {company} because {trouble}",
            "{a} wants to delay {company} {version} because {trouble}",
        ),
    ),
    "invitation": (
        Form(
            "Would you like to join the {event} {when}?",
            "{a} invited {b} to the {event} {when}",
            "{a} invites {b} to the {event} {when}",
        ),
        Form(
            "{c} and I are going to the {event} in {city}. Come with us!",
            "{a} invited {b} to go to the {event} in {city} with {c}",
            "{a} and {c} invite {b} to the {event} in {city}",
        ),
    ),
}
# What the other person answers, to any act ...
OUTCOMES = {
    "agree-also": (
        Form(
            "b: Sure. I will also {job}.",
            ", and {b} agreed and offered to {job} as well",
            "{b} agrees and will also {job}",
        ),
        Form(
            "b: Good idea. I can bring {doc} too.",
            ", and {b} agreed and will bring {doc}",
            "{b} agrees and brings {doc}",
        ),
    ),
    "agree-condition": (
        Form(
            "b: Okay, but only if {condition}.",
            ", and {b} agreed on condition that {condition}",
            "{b} agrees if {condition}",
        ),
        Form(
            "b: Only if {condition}. a: I will make sure of that.",
            ", and {b} agreed after {a} promised that {condition}",
            "{a} makes sure that {condition}",
        ),
    ),
    "agree-favour": (
        Form(
            "b: Yes, if you {job} in return. a: Deal.",
            ", and {b} agreed in return for {a} {jobbing}",
            "{a} will {job} in return",
        ),
        Form(
            "b: Happy to. Could you {job} for me? a: Of course.",
            ", and {b} agreed while {a} promised to {job}",
            "{b} agrees; - {a} will {job}",
        ),
    ),
    "decline-busy": (
        Form(
            "b: Sorry, I can't. I have to {job}.",
            ", but {b} declined because {b} has to {job}",
            "{b} can't, has to {job}",
        ),
        Form(
            "b: I would love to, but I am busy {jobbing}.",
            ", but {b} is busy {jobbing}",
            "{b} is busy {jobbing}",
        ),
    ),
    "decline-reason": (
        Form(
            "b: I'm afraid not, {clause}.",
            ", but {b} refused because {clause}",
            "{b} refuses because {clause}",
        ),
        Form(
            "b: That won't work because {clause}. a: What a pity.",
            ", but {b} said that it will not work because {clause}",
            "it won't work because {clause}",
        ),
    ),
    "refer": (
        Form(
            "b: Please ask {c}, who {skill}.",
            ", but {b} told {a} to ask {c}, who {skill}",
            "{a} should ask {c}, who {skill}",
        ),
        Form(
            "b: That is up to {c}, who {skill}. a: I will call {c} {when}.",
            ", but {b} left it to {c}, who {skill}, and {a} will call {c} {when}",
            "{a} calls {c}, who {skill}, {when}",
        ),
    ),
    "defer": (
        Form(
            "b: I will let you know {by}. I have to talk to {c} first.",
            ", and {b} promised an answer {by} after talking to {c}",
            "{b} talks to {c} and answers {by}",
        ),
        Form(
            "b: Let me {job} first, then we can decide {when}.",
            ", but {b} wants to {job} first and to decide {when}",
            "{b} will {job} first; - decision {when}",
        ),
    ),
    "later": (
        Form(
            "b: Could we do it {when} instead? a: No problem.",
            ", and they agreed to do it {when} instead",
            "new date: {when}",
        ),
        Form(
            "b: Not before {day}. a: That is too late because {clause}.",
            ", but {b} can't before {day}, which is too late because {clause}",
            "{b} can't before {day}; - too late because {clause}",
        ),
    ),
    "question": (
        Form(
            "b: Who else knows about it? a: Only {c} from {company}. b: Then I agree.",
            ", and {b} agreed on hearing that only {c} from {company} knows about it",
            "only {c} from {company} knows about it; - {b} agrees",
        ),
        Form(
            "b: Why is it urgent? a: Because {clause}. b: I see, consider it done.",
            ", and {b} agreed on hearing that {clause}",
            "it is urgent because {clause}; - {b} agrees",
        ),
    ),
}
# ... to requests only ...
REQUEST_OUTCOMES = {
    "promise": (
        Form(
            "b: Sure, I will take care of it {when}.",
            ", and {b} promised to take care of it {when}",
            "{b} takes care of it {when}",
        ),
        Form(
            "b: No problem, I can do that right after {jobbing}.",
            ", and {b} will do that right after {jobbing}",
            "{b} does it after {jobbing}",
        ),
    ),
    "delegate": (
        Form(
            "b: I will have {c} do it {when}.",
            ", and {b} will have {c} do it {when}",
            "{c} does it {when}",
        ),
        Form(
            "b: {c} can do that, and I will {job}.",
            ", and {b} said that {c} can do that while {b} will {job}",
            "{c} does it; - {b} will {job}",
        ),
    ),
}
# ... and to proposals only.
PROPOSAL_OUTCOMES = {
    "third": (
        Form(
            "b: Count me in. Can {c} from {company} come along? a: Sure.",
            ", and {b} agreed and will bring {c} from {company} along",
            "{b} agrees and brings {c} from {company}",
        ),
        Form(
            "b: Fine with me. Does {c} know? a: No, please tell {c} {by}.",
            ", and {b} agreed and should tell {c} {by}",
            "{b} agrees; - {b} tells {c} {by}",
        ),
    ),
    "rather": (
        Form(
            "b: I would rather {job}. a: Let's do that.",
            ", but they decided to {job} instead",
            "decision: {job}",
        ),
        Form(
            "b: No, let {c} choose. a: Okay, I will ask {c} {when}.",
            ", but they decided to let {c} choose, and {a} will ask {c} {when}",
            "{c} chooses; - {a} asks {c} {when}",
        ),
    ),
}
FOLLOW_UPS = (
    Form(
        "a: I will send you {doc} {when}.", "{a} will send {doc} {when}", "{a} sends {doc} {when}"
    ),
    Form("a: Please {job} as well.", "{a} also asked {b} to {job}", "{b} should {job} as well"),
    Form("a: You should know that {clause}.", "{a} added that {clause}", "{clause}"),
    Form("b: Don't forget that {clause}.", "{b} reminded {a} that {clause}", "note: {clause}"),
    Form("b: Meanwhile, please {job}.", "{b} asked {a} to {job}", "{a} should {job}"),
    Form("a: Let's check again {when}.", "They will check again {when}", "next check {when}"),
)
GREETINGS = (
    "a: Hi {b}!",
    "a: Good morning, {b}.",
    "a: Hello {b}, do you have a minute?",
    "a: {b}, one quick thing.",
    "a: Hi {b}, how was {city}? b: Lovely, thanks. What's up?",
    "a: Hi {b}, is it cold in {room} too? b: Freezing!",
    "a: Did you watch the game on {day}? b: No, I fell asleep. a: Anyway.",
    "b: Hi {a}, you look tired. a: I slept badly.",
)
THANKS = (
    "a: Thanks!",
    "a: Okay, thank you.",
    "a: Okay. b: Bye!",
    "a: All right. b: See you later.",
)

ACTS = REQUESTS | PROPOSALS
ALL_OUTCOMES = OUTCOMES | REQUEST_OUTCOMES | PROPOSAL_OUTCOMES


def _plots() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pairs of act and outcome of training and of test: one in five is held out."""
    train, test = [], []
    for row, act in enumerate(ACTS):
        own = REQUEST_OUTCOMES if act in REQUESTS else PROPOSAL_OUTCOMES
        for column, outcome in enumerate(OUTCOMES | own):
            held_out = (2 * row + column) % 5 == 0
            (test if held_out else train).append(f"{act}/{outcome}")
    return tuple(train), tuple(test)


TRAIN_PLOTS, TEST_PLOTS = _plots()


@dataclass(frozen=True)
class Dialogue:
    """A dialogue on one line and what is to be said about it.

    Args:
        text: ``Ana: ... Ben: ...``.
        plot: the act and the outcome, ``act/outcome``.
        summary: one or two sentences in the third person.
        points: the key points in the order of the dialogue.
    """

    text: str
    plot: str
    summary: str
    points: tuple[str, ...]


def capitalise(text: str) -> str:
    """``text`` with a capital letter at the start of every sentence."""
    return re.sub(r"(^|[.?!] )([a-z])", lambda match: match[1] + match[2].upper(), text)


@cache
def _turns(said: str) -> list[tuple[str, str]]:
    parts = re.split(r"(?:^| )([ab]): ", said)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _text(turns: list[tuple[str, str]], people: dict[str, str]) -> str:
    """The turns on one line; consecutive turns of one person become one."""
    line, last = [], ""
    for speaker, words in turns:
        line.append(
            capitalise(words) if speaker == last else f"{people[speaker]}: " + capitalise(words)
        )
        last = speaker
    return " ".join(line)


def dialogue(rng: random.Random, split: Split) -> Dialogue:
    """A dialogue of two to five turns with a plot of ``split``."""
    plot = rng.choice(TRAIN_PLOTS if split == "train" else TEST_PLOTS)
    act, outcome = plot.split("/")
    while True:
        first, second, *others = names.people(rng, 16)
        people = {"a": first, "b": second}
        opening = rng.choice(ACTS[act])
        forms = [Form("a: " + opening.said, opening.summary, opening.point)]
        forms.append(rng.choice(ALL_OUTCOMES[outcome]))
        if rng.random() < 0.4:
            forms.append(rng.choice(FOLLOW_UPS))
        turns: list[tuple[str, str]] = []
        if rng.random() < 0.5:
            turns += _said(rng.choice(GREETINGS), Facts(rng, people, others))
        told = []
        for form in forms:
            facts = Facts(rng, people, others)
            turns += _said(form.said, facts)
            told.append((form.summary.format_map(facts), form.point.format_map(facts)))
        if turns[-1][0] == "b" and rng.random() < 0.7:
            turns += _said(rng.choice(THANKS), Facts(rng, people, others))
        count = 1 + sum(turns[i][0] != turns[i - 1][0] for i in range(1, len(turns)))
        if count > 5:
            continue
        summary = told[0][0] + told[1][0] + "." + "".join(f" {more}." for more, _ in told[2:])
        points = "; - ".join(point for _, point in told).split("; - ")
        return Dialogue(_text(turns, people), plot, capitalise(summary), tuple(points))


def _said(said: str, facts: Facts) -> list[tuple[str, str]]:
    return [(speaker, words.format_map(facts)) for speaker, words in _turns(said)]
