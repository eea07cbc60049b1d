"""Rewrite a wordy workplace message tersely.

The content pads its sentences with set phrases, light verbs and long-winded times. Held out:
orders of two clause kinds, and source phrasings built from trained pieces.
"""

import random
import re

from . import names, registers
from .item import Item, Split

NAME = "concise"
INSTRUCTION = "Rewrite this message more concisely."

PHRASINGS = """
# request
I was wondering if you could possibly {do_you}{due}{why}.
I was just wondering if it would be possible for you to {do_you}{due}{why}.
* I was wondering if it would perhaps be possible for you to {do_you}{due}{why}.
=> Please {do_you}{due}{why}.
It is absolutely essential that you {do_you}{due}{why}.
It is of the utmost importance that you {do_you}{due}{why}.
* It is really absolutely essential that you {do_you}{due}{why}.
=> You must {do_you}{due}{why}.
I am in need of {doc}{due}{why}.
I find myself in need of {doc}{due}{why}.
* I am currently in need of {doc}{due}{why}.
=> I need {doc}{due}{why}.
# offer
I would be more than willing to {do_me}{when}.
I just wanted to say that I would be more than happy to {do_me}{when}.
* I just wanted to say that I would be more than willing to {do_me}{when}.
=> I can {do_me}{when}.
It is my intention to {do_me}{when}.
I am currently planning to go ahead and {do_me}{when}.
* It is currently my intention to go ahead and {do_me}{when}.
=> I'll {do_me}{when}.
{person} has made it known that {person} is in a position to {do_me}{when}.
I understand that {person} is in a position to {do_me}{when}.
* It seems that {person} is in a position to {do_me}{when}.
=> {person} can {do_me}{when}.
# update
I just wanted to let you know that I {did} {past}.
I am writing to inform you of the fact that I {did} {past}.
* I just wanted to inform you of the fact that I {did} {past}.
=> I {did} {past}.
As far as I am aware, {person} {did} {past}.
I would like to let you know that {person} {did} {past}.
* I just wanted to let you know that {person} {did} {past}.
=> {person} {did} {past}.
It should be noted that {doc1} {flaw}.
I think it is worth pointing out that {doc1} {flaw}.
* I think it should be noted that {doc1} {flaw}.
=> Note: {doc1} {flaw}.
# refusal
I am afraid that I will not be in a position to {do_me}{when}{why}.
Unfortunately it is not going to be possible for me to {do_me}{when}{why}.
* I am afraid that it is not going to be possible for me to {do_me}{when}{why}.
=> I can't {do_me}{when}{why}.
After giving it a great deal of thought, I have decided not to {do_me}{when}{why}.
I have come to the decision not to {do_me}{when}{why}.
* After giving it a great deal of thought, I have come to the decision not to {do_me}{when}{why}.
=> I won't {do_me}{when}{why}.
I do not have the time that would be required in order to {do_me}{when}.
I am lacking the time that would be needed in order to {do_me}{when}.
* I do not have the time that would be needed in order to {do_me}{when}.
=> No time to {do_me}{when}.
# apology
I would like to offer my sincere apologies for not {doing_me}{why}.
I really want to apologize to you for not {doing_me}{why}.
* I really want to offer my sincere apologies to you for not {doing_me}{why}.
=> Sorry for not {doing_me}{why}.
I take full responsibility for the fact that {doc1} {flaw}.
I am entirely to blame for the fact that {doc1} {flaw}.
* I am entirely responsible for the fact that {doc1} {flaw}.
=> My fault: {doc1} {flaw}.
I regret to say that I was not able to be present at {event}{why}.
I am sorry to say that I was unable to be present at {event}{why}.
* I regret to say that I was unable to be present at {event}{why}.
=> Sorry I missed {event}{why}.
# question
Would you happen to have any idea as to where {doc1} is?
I was hoping that you could tell me where {doc1} is.
* Would you happen to be able to tell me where {doc1} is?
=> Where is {doc1}?
Could you let me know when {event} is going to take place?
I was hoping that you could tell me when {event} is going to take place.
* Would you happen to have any idea as to when {event} is going to take place?
=> When is {event}?
I would be interested to find out who {did} {past}.
I was hoping that you could tell me who {did} {past}.
* Would you happen to have any idea as to who {did} {past}?
=> Who {did} {past}?
I would be interested to find out if you are available to {do_you}{when}.
I was hoping that you could tell me if you are available to {do_you}{when}.
* Could you let me know if you are available to {do_you}{when}?
=> Can you {do_you}{when}?
# reminder
I would just like to remind you that it is necessary to {do_you}{due}.
This is just a little reminder that you still have to {do_you}{due}.
* I would just like to remind you that you still have to {do_you}{due}.
=> Reminder: {do_you}{due}.
As you may already know, {doc1} is due to be handed in {on}.
Please keep in mind the fact that {doc1} is due to be handed in {on}.
* Please keep in mind, as you may already know, that {doc1} is due to be handed in {on}.
=> {doc1} is due {on}.
Please make sure that you do not forget to {do_you}{due}.
Please be careful not to forget to {do_you}{due}.
* Please make sure that you are careful not to forget to {do_you}{due}.
=> Don't forget to {do_you}{due}.
# thanks
I would like to take this opportunity to thank you for {doing_you}.
I just wanted to express how grateful I am to you for {doing_you}.
* I would like to take this opportunity to express how grateful I am to you for {doing_you}.
=> Thanks for {doing_you}.
I have to say that you did a really excellent job of {doing_you}.
In my opinion you did a truly excellent job of {doing_you}.
* In my opinion, I have to say, you did a really excellent job of {doing_you}.
=> Great job {doing_you}.
I must say that {doc} turned out to be of great help to me.
I have to say that {doc} proved to be of great help to me.
* I have to say that {doc} turned out to be of great help to me.
=> {doc} helped.
# schedule
Please be advised that {event} is now going to take place {on}.
I just wanted to let you know that {event} is now going to take place {on}.
* I am writing to inform you that {event} is now going to take place {on}.
=> {event} is now {on}.
A decision has been made to move {event} from {time} to {time2}.
It has become necessary to move {event} from {time} to {time2}.
* A decision has been made that it is necessary to move {event} from {time} to {time2}.
=> {event} moved from {time} to {time2}.
A decision has been made to call off {event}{why}.
It has become necessary to call off {event}{why}.
* A decision has been made that it is necessary to call off {event}{why}.
=> {event} is canceled{why}.
# complaint
I would like to bring to your attention the fact that {thing} {fault}.
I feel that I have to point out that {thing} {fault}.
* I feel that I have to bring to your attention the fact that {thing} {fault}.
=> {thing} {fault}.
I am not at all happy about the fact that {doc1} {flaw}.
It is a source of concern to me that {doc1} {flaw}.
* I am quite concerned about the fact that {doc1} {flaw}.
=> Problem: {doc1} {flaw}.
I was surprised to find out that not a single person {did}.
It turns out that not a single person {did}.
* I was surprised that not a single person {did}.
=> Nobody {did}.
# suggestion
It seems to me that it would be a good idea for us to {do_we}{when}{why}.
I am of the opinion that we ought to {do_we}{when}{why}.
* I am of the opinion that it would be a good idea for us to {do_we}{when}{why}.
=> We should {do_we}{when}{why}.
Perhaps one option for us to consider would be to {do_we}{when}{why}.
One possibility that we might consider would be to {do_we}{when}{why}.
* Perhaps one possibility for us to consider would be to {do_we}{when}{why}.
=> Let's {do_we}{when}{why}.
# invitation
It would give me great pleasure if you were able to come to {event} {on}.
I would like to extend an invitation to you to come to {event} {on}.
* It would give me great pleasure to extend an invitation to you to come to {event} {on}.
=> Please come to {event} {on}.
You are more than welcome to join {event} {on} if you would like to.
If you have the time, you are more than welcome to join {event} {on}.
* If you would like to, you are more than welcome to join {event} {on}.
=> Join {event} {on}.
"""

LONG_WINDED = (
    (r"\bbecause\b", ("due to the fact that", "for the reason that", "because")),
    (
        r"\bsince (?!last|yesterday)",
        ("in view of the fact that ", "given the fact that ", "since "),
    ),
    (r"\bbefore\b", ("prior to", "in advance of", "before")),
    (r"\babout\b", ("with regard to", "in relation to", "about")),
    (r"\bas soon as possible\b", ("at the earliest possible opportunity", "as soon as you can")),
    (r"\btoday\b", ("at some point today", "today")),
    (r"\bthis week\b", ("at some point this week", "this week")),
    (r"\bnext week\b", ("in the course of next week", "next week")),
    (r"\btomorrow morning\b", ("tomorrow in the morning", "tomorrow morning")),
    (r"\bthis afternoon\b", ("this afternoon", "later on this afternoon")),
    (r"\bby (?=[A-Z\dtn])", ("by no later than ", "by ")),
    (r" am on\b", (" in the morning on", " am on")),
    (r" pm on\b", (" in the afternoon on", " pm on")),
    (r"\bis broken\b", ("is in a broken state", "is broken")),
    (r"\bis not\b", ("is at this point not", "is not")),
    (r"\bis very slow\b", ("is operating very slowly", "is very slow")),
    (r"\bis missing\b", ("is currently missing", "is missing")),
)

OPENINGS = (
    ("", ""),
    ("I hope this message finds you well.", ""),
    ("Dear {name}, I hope you are having a good week.", "{name}:"),
    ("Hello {name}, I hope you are doing well.", "{name}:"),
    ("Dear {name}.", "{name}:"),
    ("Hello everyone, I hope you are all doing well.", "All:"),
)
CLOSINGS = (
    ("", ""),
    ("", ""),
    ("", ""),
    ("Please do not hesitate to ask if you have any questions.", "Questions welcome."),
    ("Thank you very much in advance for your time.", "Thanks."),
    ("I look forward to hearing back from you.", "Please reply."),
)


def _dress(rng: random.Random, text: str) -> str:
    """A slot in a wordy message."""
    text = re.sub(r"\[([^|]*)\|([^]]*)\]", r"\2" if rng.random() < 0.7 else r"\1", text)
    for pattern, choices in LONG_WINDED:
        text = re.sub(pattern, rng.choice(choices), text)
    return text


def _assemble(
    rng: random.Random, kinds: list[str], sources: list[str], targets: list[str]
) -> tuple[str, str]:
    name = names.person(rng)
    hello, greeting = rng.choice(OPENINGS)
    bye, closing = rng.choice(CLOSINGS)
    content = " ".join([hello.format(name=name), *sources, bye]).strip()
    target = " ".join([greeting.format(name=name), *map(registers.sentence, targets), closing])
    return content, target.strip()


_TASK = registers.Task(NAME, registers.parse(PHRASINGS), _dress, registers.plain, _assemble)
TRAIN_TEMPLATES = _TASK.templates("train")
TEST_TEMPLATES = _TASK.templates("test")


def make(rng: random.Random, split: Split) -> Item:
    """A wordy message, and the same in few words."""
    return _TASK.make(rng, split)
