"""A process that renders chat templates for ``rendering.py``, a conversation a line.

It imports as little as it can.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

from ..files import reason

MOST_CHARACTERS = 1 << 24  # of a rendered conversation
_MEMORY = 1 << 30  # bytes


def over(what: str) -> dict[str, Any]:
    sentence = f"the tokenizer's chat template takes {what} for this conversation"
    return {"error": sentence, "limit": True}


def main() -> None:
    """Render the conversations that come on standard input, a line each."""
    from transformers.utils.chat_template_utils import render_jinja_template

    with suppress(OSError, ValueError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    print(flush=True)
    for line in sys.stdin:
        try:
            [text], _ = render_jinja_template(**json.loads(line))
            text.encode()  # half a character of UTF-16 is no text
            found = {"text": text} if len(text) <= MOST_CHARACTERS else over("more text than fits")
        except MemoryError:
            found = over("more memory than it may")
        except Exception as error:  # a template may raise anything
            sentence = f"the tokenizer's chat template fails: {reason(error)}"
            found = {"error": sentence, "limit": False}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
