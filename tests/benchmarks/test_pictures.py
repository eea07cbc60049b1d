"""The README's pictures, drawn from small recordings and results."""

import json
import re
from xml.etree import ElementTree

import pytest
from command_line import result_of, run_program

from benchmarks.pictures import Call, Recording, main, recorded, session
from specstream_mlx.generation.text import GenerationResponse

WORDS = ["Salt", " &", " pepper", " <", " 3", " euros", "."]


def texts(svg):
    """What a picture says, by kind."""
    found = {}
    for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        found.setdefault(one.get("class"), []).append(one.text)
    return found


def test_a_session_shows_both_texts_pass_by_pass():
    plain = Recording([Call(0.5 * n, [(text, False)]) for n, text in enumerate(WORDS)], 2.0)
    steps = [[0], [1, 2, 3], [4, 5, 6]]
    pieces = [[(WORDS[i], i != step[-1]) for i in step] for step in steps]
    ours = Recording([Call(0.4 * n, step) for n, step in enumerate(pieces)], 5.0)
    svg = session(plain, ours, 'say "<b>"', "a machine & its BLAS")
    said = texts(svg)
    assert said["drafted"] == ["&", "pepper", "3", "euros"]
    own = [*(word.strip() for word in WORDS), "7 tokens, 7 passes, 2.0 tokens/s"]
    own += ["Salt", "<", ".", "7 tokens, 3 passes, 5.0 tokens/s"]
    assert said["own"][1:] == own and said["own"][0].endswith('-p "say "<b>""')
    assert said["result"] == ["2.5 times as fast here, and the same text"]
    assert said["small"] == ["a machine & its BLAS"]
    shown = {name: float(share) for name, share in re.findall(r"(\w+)\{0%\S+\}([\d.]+)%", svg)}
    assert len(shown) == 10 and set(re.findall(r"animation-name:(\w+)", svg)) == set(shown)
    assert shown["a6"] == pytest.approx(100 * 3 / 7, abs=0.01)  # 4 s later it begins anew
    assert shown["b2"] == pytest.approx(100 * 0.8 / 7, abs=0.01)


def test_responses_of_a_pass_are_one_call():
    def responses():
        for number, (call, drafted) in enumerate([(1, False), (2, True), (2, False)], start=1):
            about = dict.fromkeys(GenerationResponse.__annotations__, 0)
            about |= {"text": f"{number}", "token": 0, "logprobs": None, "from_draft": drafted}
            about |= {"prompt_tokens": 1, "prompt_tps": 1.0, "generation_tokens": number}
            about |= {"generation_tps": 6.0, "peak_memory": 0.0, "target_calls": call}
            yield GenerationResponse(**about)

    found = recorded(responses)
    assert [call.pieces for call in found.calls] == [[("1", False)], [("2", True), ("3", False)]]
    assert 0 <= found.calls[0].seconds <= found.calls[1].seconds and found.rate == 4.0


def test_the_plot_has_every_drafter_by_what_it_brings(tmp_path):
    accepted = {"rest": 1.5, "medusa": 1.2, "medusa + lookup": 2.5, "eagle3-2e-3": 2.0}
    rows = [
        {"group": group, "class": f"{group} {n}", "nodes": nodes, "temperature": temperature}
        | {"method": method, "accepted": value * n if (nodes, temperature) == (8, 0.0) else 9.0}
        for group in ("typed", "adapters")
        for n in (1, 4)
        for method, value in accepted.items()
        for nodes, temperature in ((8, 0.0), (9, 0.0), (8, 1.0))
    ]
    facts = {"machine": "M & N", "cpu": "C", "mlx": "0", "model": "smollm2", "per_class": 1}
    values = {"facts": facts | {"max_tokens": 8}, "rows": rows, "parameters": {"medusa": 1_300_000}}
    file = tmp_path / "rivals.json"
    file.write_text(json.dumps(values))
    run_program(main, "rivals", "--results", file)
    said = texts(file.with_suffix(".svg").read_text())
    assert said["name"] == ["Medusa-1, base's head", "EAGLE-3", "REST"]
    assert said["dim right"] == ["1.3 M", "none", "none"]
    assert [one for one in said["value"] if "." in one] == ["2.40", "4.00", "3.00"] * 2
    assert said["value bold"] == ["5.00", "5.00"]
    assert said["bold"] == [
        "answers of the base, 2 kinds",
        "answers of its task adapters*, 2 kinds",
    ]
    assert "SmolLM2-135M-Instruct, 1 texts a kind" in said["small"][-2]
    missing = result_of(main, "rivals", "--results", tmp_path / "no.json")
    assert missing.exit_code == 2 and "no.json" in missing.stderr
