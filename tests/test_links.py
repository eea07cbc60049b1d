"""Links between the pages: what they point to exists, headings too, and so do files they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {path.relative_to(ROOT) for path in ROOT.rglob("*.md")}
PAGES = sorted(ROOT / page for page in PAGES if not re.search(r"(^|/)\.", str(page)))
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(path), f"{target}#{anchor}: no such heading"


def test_the_files_that_the_architecture_names_exist():
    names = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/NOTES.md")
    assert {ROOT / name for name in names} <= set(PAGES)
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+\.py\b", page)) | set(re.findall(r"`([\w/]+/)`", page))
    assert {"engine/step.py", "engine/", "cli/options.py"} <= named
    for name in named:
        places = [folder / name for folder in (ROOT, ROOT / "specstream_mlx", ROOT / "tests")]
        assert any(place.exists() for place in places), f"{name} does not exist"
