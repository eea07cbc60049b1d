"""Names and numbers that a text does not contain are found, and ways to write one are the same."""

import pytest

from benchmarks.invented import invented

SAID = [
    ("friendly", "See you Tuesday at 9:30, Ana!", "ana, be there tues 9.30"),
    ("concise", "3 boxes came.", "there were, as it happens, three boxes that came"),
    ("summarize", "Jo's train is late. Everyone waits.", "Jo: my train's late"),
    ("describe", "It costs 2,500 euros and I like it.", "price[2500 euros]"),
    ("sql", "SELECT name FROM cats WHERE age > 2 LIMIT 1", "table cats(name, age): one over 3"),
    ("sql", "SELECT * FROM a WHERE d >= '2023-01-01'", "table a(d): those of 2023"),
]
INVENTED = [
    ("friendly", "See you Wednesday at 9, Ana!", "ana, be there tues 9.30", ["Wednesday"]),
    ("concise", "Then 4 boxes came.", "three boxes came", ["4"]),
    ("summarize", "He asks Ben to wait.", "Jo: wait for me", ["Ben"]),
    ("describe", "Rosa, who is from Lima, sings.", "name[Rosa], does[sings]", ["Lima"]),
    ("sql", "SELECT name FROM dogs WHERE age > 9", "table cats(name, age): over 3", ["9", "dogs"]),
    ("sql", "SELECT age FROM cats WHERE name = 'Tom'", "table cats(name, age): how old?", ["Tom"]),
]


@pytest.mark.parametrize(
    ("task", "answer", "text", "found"), [*((*said, []) for said in SAID), *INVENTED]
)
def test_what_the_text_does_not_say_is_found(task, answer, text, found):
    assert invented(task, answer, text) == found
