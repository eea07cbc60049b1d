"""Rewrite a curt or neutral workplace message in a friendly tone.

The greeting follows from whom the message addresses. A message of one clause also gets a closing,
which follows from the clause's kind. Held out: orders of two clause kinds, and source phrasings
built from trained pieces.
"""

import random
import re

from . import names, registers
from .item import Item, Split

NAME = "friendly"
INSTRUCTION = "Rewrite this message in a friendly tone."

PHRASINGS = """
# request
{do_you}{due}{why}.
Please {do_you}{due}{why}.
* Please just {do_you}{due}{why}.
=> Could you please {do_you}{due}{why}?
You need to {do_you}{due}{why}.
You must {do_you}{due}{why}.
You have to {do_you}{due}{why}.
* You will need to {do_you}{due}{why}.
=> It would be wonderful if you could {do_you}{due}{why}.
I need you to {do_you}{due}{why}.
I want you to {do_you}{due}{why}.
* I will need you to {do_you}{due}{why}.
=> Would you mind helping me out? I'd love for you to {do_you}{due}{why}.
I need {doc}{due}{why}.
Give me {doc}{due}{why}.
* Please give me {doc}{due}{why}.
=> Could you share {doc} with me{due}{why}?
# offer
I can {do_me}{when}.
I could {do_me}{when}.
* If needed, I can {do_me}{when}.
=> I'd be happy to {do_me}{when}.
I will {do_me}{when}.
I am going to {do_me}{when}.
* I am willing to {do_me}{when}.
=> No worries, I'll gladly {do_me}{when}.
{person} can {do_me}{when}.
{person} could {do_me}{when}.
* If needed, {person} can {do_me}{when}.
=> {person} would be delighted to {do_me}{when}.
# update
I {did} {past}.
FYI, I {did} {past}.
* Update: I {did} {past}.
=> Good news, I {did} {past}!
{person} {did} {past}.
FYI, {person} {did} {past}.
* Update: {person} {did} {past}.
=> Just a quick note that {person} kindly {did} {past}.
Update: {doc1} {flaw}.
Status: {doc1} {flaw}.
* FYI, {doc1} {flaw}.
=> Just to keep you in the loop, {doc1} {flaw}.
# refusal
I can't {do_me}{when}{why}.
I cannot {do_me}{when}{why}.
No, I can't {do_me}{when}{why}.
* No, I cannot {do_me}{when}{why}.
=> I'd really love to help, but I can't {do_me}{when}{why}.
I won't {do_me}{when}{why}.
I will not {do_me}{when}{why}.
* No, I won't {do_me}{when}{why}.
=> I'm so sorry, but I won't be able to {do_me}{when}{why}.
No time to {do_me}{when}.
I have no time to {do_me}{when}.
* No, I have no time to {do_me}{when}.
=> I wish I had the time to {do_me}{when}!
# apology
Sorry for not {doing_me}{why}.
I am sorry for not {doing_me}{why}.
* I apologize for not {doing_me}{why}.
=> I'm really sorry for not {doing_me}{why}.
Sorry, {doc1} {flaw}.
My mistake, {doc1} {flaw}.
* Sorry, my mistake, {doc1} {flaw}.
=> Oops, I'm terribly sorry that {doc1} {flaw}!
Sorry I missed {event}{why}.
I am sorry I missed {event}{why}.
* I apologize, I missed {event}{why}.
=> I feel awful about missing {event}{why}.
# question
Where is {doc1}?
Tell me where {doc1} is.
* I need to know where {doc1} is.
=> Do you happen to know where {doc1} is?
When is {event}?
Tell me when {event} is.
* I need to know when {event} is.
=> I was wondering when {event} is, do you know?
Are you able to {do_you}{when}?
Tell me if you are able to {do_you}{when}.
* I need to know if you are able to {do_you}{when}.
=> I was curious whether you might be able to {do_you}{when}.
Who {did} {past}?
Tell me who {did} {past}.
* I need to know who {did} {past}.
=> Do you have any idea who {did} {past}?
# reminder
Don't forget to {do_you}{due}.
Do not forget to {do_you}{due}.
* Please don't forget to {do_you}{due}.
=> Just a gentle reminder to {do_you}{due}.
Remember, {doc1} is due {on}.
Reminder: {doc1} is due {on}.
* Don't forget, {doc1} is due {on}.
=> Just a little nudge that {doc1} is due {on}.
You still have to {do_you}{due}.
You still need to {do_you}{due}.
* Reminder: you still need to {do_you}{due}.
=> Whenever you have a moment, please remember to {do_you}{due}.
# thanks
Thanks for {doing_you}.
Thank you for {doing_you}.
* Many thanks for {doing_you}.
=> Thank you so much for {doing_you}, it means a lot!
Good job {doing_you}.
Good work {doing_you}.
* Nice work {doing_you}.
=> You did an amazing job {doing_you}!
{doc1} helped.
{doc1} was useful.
* {doc1} was helpful.
=> I'm so grateful for {doc1}, what a big help!
# schedule
{event} is now {on}.
{event} moved, it is now {on}.
* FYI, {event} is now {on}.
=> Quick heads-up: {event} is now {on}.
{event} moved from {time} to {time2}.
We moved {event} from {time} to {time2}.
* FYI, {event} moved from {time} to {time2}.
=> A little change of plans: {event} has moved from {time} to {time2}.
{event} is canceled{why}.
We canceled {event}{why}.
* {event} is off{why}.
=> Sadly, we've had to cancel {event}{why}.
# complaint
{thing} {fault}.
Problem: {thing} {fault}.
* FYI, {thing} {fault}.
=> I just noticed that {thing} {fault}, could we take a look at it?
{doc1} {flaw}. Fix it.
{doc1} {flaw}. Please fix it.
* Problem: {doc1} {flaw}. Fix it.
=> I spotted that {doc1} {flaw}, maybe we could fix it together?
Nobody {did}.
No one {did}.
* Problem: nobody {did}.
=> It looks like no one {did} yet, which is easily done!
# suggestion
We should {do_we}{when}{why}.
We need to {do_we}{when}{why}.
* I think we should {do_we}{when}{why}.
=> Maybe we could {do_we}{when}{why}?
Let's {do_we}{when}{why}.
Let us {do_we}{when}{why}.
* Please let us {do_we}{when}{why}.
=> Shall we {do_we} together{when}{why}?
# invitation
Come to {event} {on}.
You should come to {event} {on}.
* Please come to {event} {on}.
=> We'd love for you to come to {event} {on}!
Join {event} {on}.
Please join {event} {on}.
* You should join {event} {on}.
=> You're warmly invited to join {event} {on}!
{person} and I are going to {event} {on}. Come along.
{person} and I are at {event} {on}. Come along.
* {person} and I are going to {event} {on}. Please come along.
=> {person} and I would be thrilled if you came along to {event} {on}!
"""

CLOSINGS = {
    "request": "Thank you so much!",
    "offer": "Just let me know!",
    "update": "Happy to tell you more!",
    "refusal": "I hope you understand!",
    "apology": "Thanks for your patience!",
    "question": "Thanks for your help!",
    "reminder": "You've got this!",
    "thanks": "Have a lovely day!",
    "schedule": "Hope that works for you!",
    "complaint": "I'm sure we can sort it out!",
    "suggestion": "What do you think?",
    "invitation": "Hope to see you there!",
}

CONTRACTIONS = {
    "is not": "isn't",
    "does not": "doesn't",
    "has not": "hasn't",
    "I am": "I'm",
    "we are": "we're",
}


def _dress(rng: random.Random, text: str) -> str:
    """A slot in a curt or neutral message: at times without articles, or contracted."""
    text = registers.plain(text)
    if rng.random() < 0.2:
        text = re.sub(r"\bthe ", "", text)
    return _contract(text) if rng.random() < 0.4 else text


def _contract(text: str) -> str:
    for full, short in CONTRACTIONS.items():
        text = re.sub(rf"\b{full}\b", short, text)
    return text


def _finish(text: str) -> str:
    return _contract(registers.plain(text))


def _assemble(
    rng: random.Random, kinds: list[str], sources: list[str], targets: list[str]
) -> tuple[str, str]:
    name = names.person(rng)
    start, greeting = rng.choice(
        (
            ("", "Hi there!"),
            (f"{name}.", f"Hi {name}!"),
            (f"Hello {name}.", f"Hello {name}, hope all is well!"),
            ("Team.", "Hi everyone!"),
        )
    )
    content = " ".join([start, *map(registers.sentence, sources)]).strip()
    closing = CLOSINGS[kinds[0]] if len(kinds) == 1 else ""
    target = " ".join([greeting, *map(registers.sentence, targets), closing])
    return content, target.strip()


_TASK = registers.Task(NAME, registers.parse(PHRASINGS), _dress, _finish, _assemble)
TRAIN_TEMPLATES = _TASK.templates("train")
TEST_TEMPLATES = _TASK.templates("test")


def make(rng: random.Random, split: Split) -> Item:
    """A curt or neutral message, and the same in a friendly tone."""
    return _TASK.make(rng, split)
