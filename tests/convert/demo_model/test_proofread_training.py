"""Proofreading items made for training: what they may change, and what stays held out."""

import random

from specstream_mlx.convert.demo_model import tasks
from specstream_mlx.convert.demo_model.slips import HELD_OUT_ERRORS, with_slips
from specstream_mlx.convert.demo_model.splices import _CLAUSE_STARTS, splice
from specstream_mlx.convert.demo_model.swaps import with_swaps
from specstream_mlx.convert.demo_model.tasks import Item, messages


def correct(rng: random.Random) -> Item:
    """A message without errors."""
    return correct_item(tasks.sample(rng, "train", "proofread").target)


def correct_item(text: str) -> Item:
    return Item("proofread", text, text, ())


def test_a_splice_is_a_head_and_a_tail_of_its_items_in_content_and_target_alike():
    rng = random.Random(0)
    spliced = 0
    for _ in range(100):
        first, second = correct(rng), correct(rng)
        item = splice(first, second, rng)
        if item == first:  # no fitting places
            continue
        assert item.content == item.target
        words, head, tail = (x.target.split(" ") for x in (item, first, second))
        assert any(
            words == head[:cut] + tail[-(len(words) - cut) :] for cut in range(1, len(words))
        )
        spliced += 1
    assert spliced > 40


def test_splices_correct_every_error_that_they_keep():
    rng = random.Random(1)
    for _ in range(100):
        pair = [tasks.sample(rng, "train", "proofread") for _ in range(2)]
        item = splice(*pair, rng)
        targets = pair[0].target.split(" ") + pair[1].target.split(" ")
        assert set(item.target.split(" ")) <= set(targets)


def test_slips_leave_the_target_and_change_at_most_as_many_places_as_asked():
    rng = random.Random(2)
    changed = 0
    for _ in range(200):
        item = correct(rng)
        slipped = with_slips(item, 1, rng)
        assert slipped.target == item.target
        words, before = slipped.content.split(" "), item.content.split(" ")
        start = next((i for i, (a, b) in enumerate(zip(words, before, strict=False)) if a != b), 0)
        end = len(before) - start - 1
        assert words[:start] == before[:start]
        assert end == 0 or words[-end:] == before[-end:]
        changed += slipped.content != item.content
    assert changed > 100
    item = correct(rng)
    assert with_slips(item, 0, rng) == item


def test_no_slip_is_an_error_of_a_held_out_type():
    rng = random.Random(4)
    for _ in range(400):
        item = correct(rng)
        slipped = with_slips(item, 1, rng).content
        words = item.content.split(" ")
        for name, error in HELD_OUT_ERRORS.items():
            for _ in range(4):  # some types draw the place of a letter
                for place, wrong in error(words, rng):
                    texts = [*words[:place], wrong, *words[place + 1 :]]
                    assert slipped != " ".join(filter(None, texts)), name


def test_most_splices_start_a_clause_or_a_sentence_and_marks_fit():
    rng = random.Random(3)
    at_clauses = total = 0
    for _ in range(100):
        first, second = correct(rng), correct(rng)
        made = splice(first, second, rng)
        if made == first:
            continue
        words, head = made.target.split(" "), first.target.split(" ")
        cut = next(i for i, (a, b) in enumerate(zip(words, head, strict=False)) if a != b)
        total += 1
        at_clauses += words[cut - 1][-1] in ".?" or words[cut] in _CLAUSE_STARTS
        if words[cut - 1][-1] not in ".?":
            marks = [next(w[-1] for w in text[cut:] if w[-1] in ".?") for text in (words, head)]
            assert marks[0] == marks[1]
    assert at_clauses >= total / 2 >= 20


def test_swaps_change_single_words_in_content_and_target_alike():
    rng = random.Random(3)
    seen = set()
    for _ in range(200):
        item = tasks.sample(rng, "train", "proofread")
        swapped = with_swaps(item, 4, rng)
        pairs = []
        for before, after in ((item.content, swapped.content), (item.target, swapped.target)):
            words, others = before.split(" "), after.split(" ")
            assert len(words) == len(others)
            pairs.append([(a, b) for a, b in zip(words, others, strict=True) if a != b])
        assert pairs[0] == pairs[1]
        seen |= {after.lower() for _, after in pairs[1]}
        assert all(a[0].isupper() == b[0].isupper() for a, b in pairs[1])
    assert {"should", "when", "move"} <= seen


def test_swaps_keep_the_form_of_a_verb():
    rng = random.Random(0)
    text = "We must send the report because you've written the plan before copying the file."
    forms = {base: forms for base, forms in messages.VERBS.items()}
    for _ in range(50):
        words = with_swaps(correct_item(text), 6, rng).target.split(" ")
        assert words[2] in forms
        assert words[7] in {past for _, past, _ in forms.values()}
        assert words[11] in {gerund for *_, gerund in forms.values()}


def test_no_swap_where_nothing_fits():
    item = correct_item("The team left yesterday.")
    assert with_swaps(item, 5, random.Random(0)) == item
