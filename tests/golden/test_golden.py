"""The code writes, plans and answers what is kept; see ``record.py`` for how to record anew."""

import sys

import pytest
from demonstration_weights import installed
from golden.record import PARTS, differences, in_new_process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11),
    reason="what is kept was written on Linux, and help pages by Python 3.11",
)


def check(name):
    if name.startswith("real") and not installed():
        pytest.skip("needs the weights of the demonstration model")
    found = differences(name, in_new_process([name])[name])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [name for name, (_, is_quick) in PARTS.items() if is_quick])
def test_what_is_quick_is_as_it_is_kept(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, is_quick) in PARTS.items() if not is_quick])
def test_all_is_as_it_is_kept(name):
    check(name)
