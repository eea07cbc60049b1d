"""What the comparison with the record lets pass, and what it does not."""

import json
import re

import pytest
from golden.record import FLOAT, as_kept, differences, kept_of


def planted(name, pattern, change):
    """The part as it is kept, with the first text that has the pattern changed there; its key."""
    part = kept_of(name)
    for key, lines in part.items():
        for place, line in enumerate(lines):
            if isinstance(line, str) and (match := re.search(pattern, line)):
                start, end = match.span(1)
                lines[place] = line[:start] + change(match[1]) + line[end:]
                return part, f"{name}: {key}\n"
    raise AssertionError(f"{name} has no {pattern}")


def more(much):
    return lambda text: repr(float(text) + much)


FLOATS = [
    ("server", r'"logprob": (-[\d.]+)'),  # in the JSON of an answer
    ("server", r'^data: .*"guess_worth": ([\d.]+)'),  # of an event
    ("server", r"and was to bring ([\d.]+);"),  # in a sentence inside it
    ("doors", r"Train loss ([\d.]+)"),
]


@pytest.mark.parametrize(("name", "pattern"), FLOATS)
def test_a_float_is_compared_by_a_tolerance(name, pattern):
    for little in (2e-6, -5e-5):
        assert differences(name, planted(name, pattern, more(little))[0]) == []
    for much in (1e-2, -1e-2):
        found, key = planted(name, pattern, more(much))
        (said,) = differences(name, found)
        assert said.startswith(key)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("quick", r"^(\d+) \d+ "),  # a token id
        ("tiny together", r" (\d+)$"),
        ("quick", r" \w+/(\d+)/\d+:\d"),  # a plan's nodes
        ("quick", r" \w+/\d+/(\d+):\d"),  # its width
        ("real alone", r":(\d+)$"),  # what a step accepted
        ("operations", r"^(\d+) "),  # how often it waited
        ("server", r'"bytes": \[(\d+)'),
        ("server", r'"target_calls": (\d+)'),
        ("help", r"Default: 127\.0\.0\.(1)"),
    ],
)
def test_what_is_no_float_is_compared_exactly(name, pattern):
    found, key = planted(name, pattern, lambda text: str(int(text) + 1))
    (said,) = differences(name, found)
    assert said.startswith(key)


def test_what_is_missing_or_more_is_said():
    kept = kept_of("quick")
    key = next(iter(kept))
    assert differences("quick", {name: kept[name] for name in kept if name != key})
    assert differences("quick", kept | {"one more": ["1", "p"]})
    for lines in (kept[key][:1], [*kept[key], "p"]):
        assert differences("quick", kept | {key: lines})


def test_floats_in_lists_dictionaries_and_texts():
    kept = {"a": [1.5, [20000.0, 3]], "b": "x 1.5 y -2.0e-07 of 1.2.3", "c": 1.0}
    near = {"a": [1.50001, [20001.0, 3]], "b": "x 1.50001 y -3.0e-07 of 1.2.3", "c": 1.00001}
    assert as_kept(kept, near) == kept == as_kept(kept, json.loads(json.dumps(kept)))
    far = {"a": [1.6, [20001.0, 4]], "b": "x 1.6 y -3.0e-07 of 1.2.3", "c": 1.1}
    expected = {"a": [1.6, [20000.0, 4]], "b": "x 1.6 y -2.0e-07 of 1.2.3", "c": 1.1}
    assert as_kept(kept, far) == expected
    assert as_kept("1.5 of 1.2.3", "1.5 of 1.2.4") == "1.5 of 1.2.4"
    assert as_kept([1.5], [1.5, 2.5]) == [1.5, 2.5] and as_kept([1.5, 2.5], [1.5]) == [1.5]
    assert as_kept(None, "1.5") == "1.5" and as_kept("1.5", "1.5.") == "1.5."
    assert FLOAT.findall("127.0.0.1, 0.90. -2.5e-05s 1e-4 v1.2") == ["0.90", "-2.5e-05"]
