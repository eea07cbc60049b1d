"""The code writes, plans and answers what is kept; see ``record.py`` for how to record anew."""

import pytest
from golden.record import PARTS, differences, in_new_process


@pytest.mark.parametrize("name", [name for name, (_, is_quick) in PARTS.items() if is_quick])
def test_what_is_quick_is_as_it_is_kept(name):
    assert not (found := differences(name, in_new_process([name])[name])), "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, is_quick) in PARTS.items() if not is_quick])
def test_all_is_as_it_is_kept(name):
    assert not (found := differences(name, in_new_process([name])[name])), "\n".join(found)
