"""Correct short workplace messages of one to three sentences, built from a phrase grammar.

A message is an optional greeting and one to three sentences. Every sentence follows a *plan* (a
sentence skeleton such as ``request.could``) whose symbols expand through ``_PHRASES`` down to
word lists, names, numbers, days and times, so that messages practically never repeat.

Held out for the test split: the plans of ``_TEST_PLANS``. They recombine clauses of the trained
plans (another order, another conjunction, two clauses that never met). Every test message
contains at least one of them; a train message contains none.

Two rules keep messages easy to correct: a noun has one kind of article (documents, places and
people take "the", problems and equipment take "a" or "an"), and sentences end in "." or "?".
"""

import random
import re

from . import names
from .item import Split

DAYS = "Monday Tuesday Wednesday Thursday Friday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
NUMBER_WORDS = "two three four five six seven eight nine ten twelve".split()
QUANTIFIERS = "several many both".split()

_DOCUMENTS = """report budget invoice contract proposal schedule agenda brochure form survey
document presentation estimate spreadsheet checklist newsletter manual receipt quote forecast
chart template guide handout file folder poster list statement certificate ticket logo video map
label badge letter offer drawing article flyer page diagram
menu sample plan password catalog record photo price recipe script timetable picture
voucher permit questionnaire bulletin""".split()
_JOBS = """manager designer accountant assistant supplier director engineer lawyer driver trainer
visitor client customer partner editor analyst
intern technician photographer cleaner baker nurse teacher developer inspector""".split()
_PLACES = """kitchen lobby office warehouse basement garage hall library canteen garden studio
workshop archive entrance hallway laboratory reception shop factory""".split()
_DEVICES = """printer projector scanner server elevator heater camera lock dishwasher alarm door
lamp window microphone sensor radiator generator fridge machine""".split()
_EVENTS = """meeting workshop call interview session lunch seminar demo visit tour lecture
conference breakfast exam party ceremony""".split()
_TROUBLES = "problem mistake delay error issue fault conflict".split()
_EQUIPMENT = """laptop monitor keyboard desk chair phone headset adapter umbrella envelope
whiteboard cable calculator extension tablet mouse stapler apron tool backpack bicycle""".split()

# Base form, past, past participle, -ing form; regular verbs are listed after them.
_IRREGULAR = """send sent sent sending; write wrote written writing; find found found finding;
bring brought brought bringing; take took taken taking; choose chose chosen choosing;
see saw seen seeing; show showed shown showing; rewrite rewrote rewritten rewriting;
get got got getting; give gave given giving; make made made making; go went gone going;
come came come coming; begin began begun beginning; speak spoke spoken speaking;
keep kept kept keeping; hold held held holding; submit submitted submitted submitting;
scan scanned scanned scanning; copy copied copied copying; edit edited edited editing;
lose lost lost losing; forget forgot forgotten forgetting"""
_REGULAR = """review check finish approve print sign share correct prepare compare upload complete
replace translate update open discuss return forward mail explain deliver present cancel move
order call talk collect save publish
describe summarize display examine accept reject confirm request measure arrange design""".split()


def _forms() -> dict[str, tuple[str, str, str]]:
    forms = {}
    for entry in _IRREGULAR.split(";"):
        base, past, participle, ing = entry.split()
        forms[base] = (past, participle, ing)
    for base in _REGULAR:
        stem = base.removesuffix("e")
        forms[base] = (stem + "ed", stem + "ed", stem + "ing")
    return forms


VERBS = _forms()
"""Base form of each verb -> its past, past participle and -ing form."""

_ON_DOCUMENTS = """review check finish approve print sign share correct prepare compare upload
complete replace translate update send write find bring choose see rewrite submit scan copy edit
open discuss collect save publish describe summarize display examine accept reject confirm request
measure arrange design""".split()
_TRANSFERS = "send show give forward mail explain deliver return present bring".split()


PLURALS = {noun + "s": noun for noun in _DOCUMENTS + _JOBS}
SINGULARS = (*_DOCUMENTS, *_JOBS, *_PLACES, *_DEVICES, *_EVENTS, *_TROUBLES, *_EQUIPMENT, "team")

_ADJECTIVES = """new final updated signed revised latest monthly weekly quarterly annual printed
short old missing recent original detailed internal official yearly corrected
unsigned confidential temporary public private important urgent regional foreign""".split()
_TOPICS = """sales marketing finance security travel training safety project product hiring launch
support audit delivery payment insurance research energy software furniture
recruitment transport quality community advertising weekend summer winter""".split()
MODIFIERS = (*_ADJECTIVES, *_TOPICS, "meeting", "small", "serious", "good", "spare", "main")

_WORDS: dict[str, list[str]] = {
    "day": DAYS,
    "count": NUMBER_WORDS,
    "some": QUANTIFIERS,
    "noun": _DOCUMENTS,
    "nouns": [noun + "s" for noun in _DOCUMENTS],
    "job": _JOBS,
    "jobs": [noun + "s" for noun in _JOBS],
    "place": _PLACES,
    "device": _DEVICES,
    "event": _EVENTS,
    "trouble": _TROUBLES,
    "equipment": _EQUIPMENT,
    "adj": _ADJECTIVES,
    "topic": _TOPICS,
    "v": _ON_DOCUMENTS,
    "ved": [VERBS[verb][0] for verb in _ON_DOCUMENTS],
    "vpp": [VERBS[verb][1] for verb in _ON_DOCUMENTS],
    "ving": [VERBS[verb][2] for verb in _ON_DOCUMENTS],
    "t": _TRANSFERS,
    "ted": [VERBS[verb][0] for verb in _TRANSFERS],
    "tpp": [VERBS[verb][1] for verb in _TRANSFERS],
    "ting": [VERBS[verb][2] for verb in _TRANSFERS],
}

# Alternatives are separated by "|"; "{symbol}" expands further, "@" becomes "a" or "an", and an
# alternative "-" is nothing.
_PHRASES = {
    "one": """the {noun}|the {adj} {noun}|the {topic} {noun}|the {adj} {topic} {noun}|
        the {company} {noun}|the {topic} {noun} for {company}|the {noun} from {name}|
        your {noun}|my {adj} {noun}|our {topic} {noun}|{name}'s {noun}|{name}'s {adj} {noun}""",
    "more": """the {adj} {nouns}|the {topic} {nouns}|the {nouns} for {company}|{count} {nouns}|
        {count} {adj} {nouns}|{number} {topic} {nouns}|{some} {nouns}|{some} {topic} {nouns}|
        the {company} {nouns}|your {adj} {nouns}|all the {nouns}""",
    "doc": "{one}|{one}|{more}",
    "she": "{name}|{name}|the {topic} team|the {job}|the {job} from {company}|{company}",
    "they": "{name} and {name}|the {jobs}|the {topic} {jobs}|we|they|you and {name}",
    "them": "{name}|the {job}|the {topic} team|{name} and {name}|the {jobs}|{company}",
    "anyone": "I|we|{she}|{name}|{they}",
    "clock": "{time}|{time}",
    "at": """on {day}|at {clock}|at {clock} on {day}|on {date}|on {day} at {clock}|tomorrow|
        next week|this afternoon|tomorrow at {clock}""",
    "by": "by {day}|before {clock}|by {date}|before {day}|by tomorrow|before the end of the week",
    "future": "{at}|{by}",
    "maybe": "-|{future}",
    "past": "yesterday|on {day}|last week|this morning|on {date}|two days ago|last month",
    "where": """in the {place}|in room {number}|at the {company} office|near the {place}|
        next to the {device}|behind the {place}|
        across from the {place}""",
    "act": "{v} {doc}|{v} {doc}|{t} {doc} to {them}|{other}",
    "acted": "{ved} {doc}|{ved} {doc}|{ted} {doc} to {them}|{othered}",
    "gone": "{vpp} {doc}|{vpp} {doc}|{tpp} {doc} to {them}|{otherpp}",
    "acting": "{ving} {doc}|{ving} {doc}|{ting} {doc} to {them}|{othering}",
    "other": """go to the {event}|come to the {event}|begin the {topic} {event}|
        speak to {them} about {doc}|call {them} about {doc}|take {doc} to {company}|
        order {number} {nouns}|talk to {them} about the {event}|cancel the {event} with {name}""",
    "othered": """went to the {event}|came to the {event}|began the {topic} {event}|
        spoke to {them} about {doc}|called {them} about {doc}|took {doc} to {company}|
        ordered {number} {nouns}|talked to {them} about the {event}|
        canceled the {event} with {name}""",
    "otherpp": """gone to the {event}|come to the {event}|begun the {topic} {event}|
        spoken to {them} about {doc}|called {them} about {doc}|taken {doc} to {company}|
        ordered {number} {nouns}|talked to {them} about the {event}|
        canceled the {event} with {name}""",
    "othering": """going to the {event}|coming to the {event}|beginning the {topic} {event}|
        speaking to {them} about {doc}|calling {them} about {doc}|taking {doc} to {company}|
        ordering {number} {nouns}|talking to {them} about the {event}|
        canceling the {event} with {name}""",
    "state": """ready|late|incomplete|wrong|too long|out of date|almost finished|empty|not ready|
        too large for email|difficult to read|very useful|still in {company}'s office|
        on the shared drive|too expensive|not correct|hard to find|full of mistakes|
        easy to understand|completely blank|nearly complete|hidden behind the {device}|locked|
        good enough for {them}|ready for {them}|more expensive every year|surprisingly short|
        too complicated for {them}""",
    "mood": """busy|away|on holiday|in training|at the {company} office|ill|too busy to help|
        ready to start|responsible for {doc}|interested in {doc}|free {at}|waiting for {doc}""",
    "is": """{one} is {state}|{more} are {state}|{name} is {mood}|{they} are {mood}|
        the {job} was {mood} {past}|{more} were {state} {past}|{one} was {state} {past}""",
    "no": "do not|don't",
    "never": "do not|don't|please don't|never",
    "not_yet": """{she} has not {gone} yet|{they} have not {gone} yet|I haven't {gone} yet|
        {she} hasn't {gone} yet|they haven't {gone} yet|we've not {gone} yet""",
    "wants": """{she} needs {doc} {future}|{she} wants to {act}|{they} want to {act}|
        {she} expects {doc} {by}|{they} need {doc} {future}|the {event} depends on {doc}""",
    "negative": """{anyone} did not {act} {past}|{anyone} didn't {act}|{she} does not have {doc}|
        {they} {no} have {doc}|I {no} have {doc}|{she} doesn't want to {act}""",
    "will": """{anyone} will {act} {maybe}|I'll {act} {maybe}|we must {act} {future}|
        they'll {act} {maybe}|{anyone} can {act} {future}|{anyone} should {act} {maybe}|
        you'll see {doc} {at}|{anyone} can't {act} {future}""",
    "done": """I have {gone}|I've {gone}|we've already {gone}|{she} has just {gone}|
        {they} have already {gone}|they've {gone}|{anyone} {acted} {past}|you've {gone}""",
    "doing": "I'm {acting}|{she} is {acting}|{they} are still {acting}|they're {acting}",
    "with": "with {doc}|with {doc}|in {one}|with the {device} in the {place}",
    "wrong": """there is @ {trouble} {with}|there was @ {trouble} {with} {past}|
        there are {count} mistakes in {doc}|the {device} in the {place} is broken|
        it's too late to {act}|{wanting}""",
    "wanting": "I need @ {equipment}|{she} needs @ {equipment}|we have @ {trouble} {with}",
    "fact": "{is}|{is}|{not_yet}|{wants}|{done}|{doing}|{wrong}|{negative}|{will}|{who_own}",
    "known": "{is}|{is}|{wants}|{done}|{doing}|{wrong}|{who_own}",
    "who_own": """the {jobs} changed their {nouns}|{name} and {name} sent me their {adj} {nouns}|
        {company} changed its {topic} {noun}|{company} has moved its {nouns} to {company}|
        you're {mood}|it's {state}""",
    "because": "-|-|because {fact}|, so {will}|, but {fact}|, and {fact}",
    "ask": "Could you|Can you|Would you|Could {name}|Can the {job}",
    "worse": "shorter|longer|better|worse|cheaper|older|clearer|larger|later",
    "kind": """help|advice|hard work|patience|ideas|notes|support|time|comments|quick reply|
        careful work|useful suggestions|thoughts|honest feedback|kind words""",
    "effect": "have a serious effect on|have a small effect on|have a good effect on|affect",
    "before": "before|after",
    "greeting": "Hi {name},|Hello {name},|Dear {name},|Hi all,|Good morning {name},|{name},",
}

_TRAIN_PLANS = {
    "request.please": "Please {act} {maybe} {because}.",
    "request.could": "{ask} {act} {maybe}?",
    "request.then": "Please {act} and then {act} {maybe}.",
    "request.need": "I need you to {act} {maybe} {because}.",
    "request.wants": "{wants} {because}.",
    "request.if": "If {known}, please {act} {maybe}.",
    "request.before": "Please {act} before {acting}.",
    "question.has": "Has {she} {gone} yet?|Have {they} {gone} yet?",
    "question.did": "Did {anyone} {act} {past}?|Does {she} want to {act} {future}?",
    "question.is": "Is {one} {state}, or should I {act}?|Are {more} {state}?",
    "question.whether": "Do you know whether {known}?|Can you tell me whether {known}?",
    "question.when": "When can you {act}?|When will {anyone} {act}?|Why did {anyone} {act}?",
    "question.question": "I have @ {topic} question about {doc}.|I have @ idea for {doc}.",
    "status.done": "{done} {because}.",
    "status.is": "{is} {because}.",
    "status.doing": "{doing}, and {will}.",
    "status.wait": "I'm still waiting for {them} to {act} {because}.",
    "status.then": "First I'll {act}, and then {anyone} can {act}.",
    "status.own": "{who_own} {because}.",
    "schedule.meet": "Let's meet {where} {at} to {act}.",
    "schedule.starts": "The {topic} {event} starts at {clock} on {day} {where}.",
    "schedule.move": "The {event} with {company} has moved to {day} because {fact}.",
    "schedule.late": "I'll be late for the {event} {at} because {fact}.",
    "schedule.there": "I'll be {where} {at}, and {name} will be there too.",
    "problem.there": "{wrong}, so {will}.",
    "problem.not": "{negative} because {fact}.",
    "problem.open": "{anyone} can't find {doc} {where}.|{not_yet}, and {they} are waiting.",
    "problem.lose": "I {no} want to lose {doc}.|We could lose {doc} if we {no} {act}.",
    "problem.effect": "The {trouble} {with} will {effect} {doc}.",
    "thanks.acting": "Thanks for {acting} {past}.|Thank you for {acting}.",
    "thanks.kind": "Thank you for your {kind} with {doc}.|Thanks for all your {kind} {past}.",
    "reminder.forget": "{never} forget to {act} {future}.|Remember to {act} {future}.",
    "reminder.due": "{one} is due {at} {because}.|{more} are due {at}.",
    "decision.decided": "{anyone} decided to {act} {maybe} {because}.",
    "decision.should": "{anyone} should have {gone} {past}.|{anyone} must not {act} {future}.",
    "compare.than": "{one} is {worse} than {one}.|{more} are {worse} than {more}.",
    "offer.know": "Let me know if you're {mood} or if you need {doc}.|Let me know whether {known}.",
    "offer.will": "If you're {mood}, I'll {act} {maybe}.|It's easy to {act}, so {will}.",
}

_TEST_PLANS = {
    "request.ask_before": "{ask} {act} before {acting}?|{ask} {act} and then {act}?",
    "request.important": "It's important to {act} {maybe} because {fact}.",
    "request.when_done": "Please {act} when you've {gone}.",
    "question.if": "If {known}, could you {act} {maybe}?",
    "question.should": "Should {anyone} {act} before {acting}?|Are you {acting}?",
    "status.but": "{not_yet}, but they've {gone} and they'll {act} {maybe}.",
    "status.there": "{name} will be {where} {at}, and you're {mood}.",
    "schedule.must_move": "We must move the {event} to {day} because {fact}.",
    "schedule.meet_then": "Let's {act} {at}, and then {anyone} can {act}.",
    "problem.while": "{wrong}, and {not_yet}.|{wrong}, but it's {state}.",
    "thanks.and": "Thanks for {acting} and for your {kind} with {doc}.",
    "reminder.lose": "Remember to {act} {maybe}, or we could lose {doc}.",
    "decision.later": "{anyone} decided to {act} later than {day} because {fact}.",
    "compare.so": "{one} is {worse} than {one}, so it's {state}.|"
    "{more} were {worse} than {more}, and {will}.",
}

TRAIN_PLANS = tuple(_TRAIN_PLANS)
TEST_PLANS = tuple(_TEST_PLANS)


def _compile(text: str) -> list[list[str]]:
    """The alternatives of ``text``, each as literal words (even places) and symbols (odd ones)."""
    alternatives = []
    for line in text.split("|"):
        line = " ".join(line.split()).replace("-", "") if line.strip() == "-" else line.strip()
        if not re.match(r"I\b", line):
            line = line[:1].lower() + line[1:]
        alternatives.append(re.split(r"\{(\w+)\}", " ".join(line.split())))
    return alternatives


_RULES = {symbol: _compile(text) for symbol, text in _PHRASES.items()}
_PLANS = {plan: _compile(text) for plan, text in (_TRAIN_PLANS | _TEST_PLANS).items()}


class _Writer:
    """Expands symbols, with different people, companies and (mostly) words in one message."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names = names.people(rng, 12)
        self.used: list[str] = []

    def word(self, symbol: str) -> str | None:
        rng = self.rng
        if symbol in _WORDS:
            word = rng.choice(_WORDS[symbol])
            if word in self.used:
                word = rng.choice(_WORDS[symbol])
            self.used.append(word)
            return word
        if symbol == "name":
            return self.names.pop() if self.names else names.person(rng)
        if symbol == "company":
            return names.coined(rng)
        if symbol == "number":
            return str(rng.randint(2, 99))
        if symbol == "time":
            minutes = rng.choice(("", "", ":15", ":30", ":45"))
            hour = rng.randint(8, 18)
            return f"{hour - 12 if hour > 12 else hour}{minutes} {'am' if hour < 12 else 'pm'}"
        if symbol == "date":
            return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
        return None

    def expand(self, parts: list[str]) -> str:
        out = []
        for place, part in enumerate(parts):
            if place % 2 == 0:
                out.append(part)
            else:
                word = self.word(part)
                out.append(self.expand(self.rng.choice(_RULES[part])) if word is None else word)
        return "".join(out)

    def sentence(self, plan: str) -> str:
        text = " ".join(self.expand(self.rng.choice(_PLANS[plan])).split())
        text = re.sub(r" ([,.?])", r"\1", text)
        return re.sub(r"@ (\w)", lambda found: indefinite(found[1]) + " " + found[1], text)


def indefinite(word: str) -> str:
    """ "a" or "an" before ``word`` (whose spelling decides, in this vocabulary)."""
    return "an" if word[0] in "aeiou" else "a"


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def message(rng: random.Random, split: Split) -> tuple[str, tuple[str, ...]]:
    """A correct message of 45 to 230 characters, and the identifiers of its sentence plans."""
    while True:
        count = rng.choice((1, 1, 2, 2, 2, 3))
        plans = [rng.choice(TRAIN_PLANS) for _ in range(count)]
        if split == "test":
            plans[rng.randrange(count)] = rng.choice(TEST_PLANS)
        writer = _Writer(rng)
        sentences = [writer.sentence(plan) for plan in plans]
        greeting = ""
        if rng.random() < 0.3:
            greeting = _capitalized(writer.expand(["", "greeting", " "]))
        if not greeting:
            sentences[0] = _capitalized(sentences[0])
        sentences[1:] = map(_capitalized, sentences[1:])
        text = greeting + " ".join(sentences)
        if 45 <= len(text) <= 230:
            return text, tuple(dict.fromkeys(plans))


def _vocabulary() -> frozenset[str]:
    literals = (*_PHRASES.values(), *_TRAIN_PLANS.values(), *_TEST_PLANS.values())
    words = re.findall(r"[a-z']+", re.sub(r"\{\w+\}", " ", " ".join(literals)).lower())
    for listed in _WORDS.values():
        words.extend(word.lower() for word in listed)
    return frozenset(words) | {"am", "pm", "a", "an", *(month.lower() for month in MONTHS)}


VOCABULARY = _vocabulary()
"""Every word that messages are made of, in lower case, besides people and coined names."""
