"""The code writes, plans and answers what is kept; see ``record.py`` for how to record anew."""

import sys

import pytest
from demonstration_weights import installed
from golden.record import PARTS, differences, in_new_process

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11),
    reason="what is kept was written on Linux, and help pages by Python 3.11",
)


GROUPS = [["server"], ["quick", "operations", "real quick", "help"]]
GROUPS += [["tiny alone"], ["tiny together"], ["real alone"], ["real together"]]
GROUPS += [[name for name in PARTS if not any(name in names for names in GROUPS)]]  # commands
"""Parts that one process makes: what the earlier ones leave in it changes none of them. Those of
the first two are in the default run."""
MARKS = [[], [], *([pytest.mark.slow] for _ in GROUPS[2:])]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=", ".join(names[:4]), marks=marks)
        for names, marks in zip(GROUPS, MARKS, strict=True)
    ],
)
def test_all_is_as_it_is_kept(names):
    names = [name for name in names if installed() or not name.startswith("real")]
    if not names:
        pytest.skip("needs the weights of the demonstration model")
    found = in_new_process(names)
    wrong = [line for name in names for line in differences(name, found[name])]
    assert not wrong, "\n".join(wrong)
