"""A tokenizer without a token for each id: one sentence, however mlx_lm's detokenizers fail."""

from types import SimpleNamespace

import pytest
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer
from tiny_models import tiny_tokenizer

from specstream_mlx import UserError
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.plan import Plan, root_only
from specstream_mlx.request import Request
from specstream_mlx.responses import respond
from specstream_mlx.scheduler import Step

HOLE = 30


class Holed:
    """The tiny tokenizer without one token, behind one of mlx_lm's detokenizers."""

    eos_token_ids = ()

    def __init__(self, detokenizer):
        self._whole, self._detokenizer = tiny_tokenizer(), detokenizer

    def __len__(self):
        return len(self._whole)

    def get_vocab(self):
        return {text: token for text, token in self._whole.get_vocab().items() if token != HOLE}

    def convert_ids_to_tokens(self, ids):
        texts = self._whole.convert_ids_to_tokens(ids)
        return [None if token == HOLE else text for token, text in zip(ids, texts, strict=True)]

    @property
    def detokenizer(self):
        return self._detokenizer(self)


@pytest.mark.parametrize("detokenizer", [BPEStreamingDetokenizer, SPMStreamingDetokenizer])
def test_a_hole_is_named(detokenizer):
    request = Request([1], DraftSettings(), max_tokens=3)
    plan = Plan(root_only(1), "plain")
    result = SimpleNamespace(logits=None)
    steps = [Step([token], plan, 1, 0.1, result, [0]) for token in (20, HOLE)]
    with pytest.raises(UserError, match=f"the tokenizer has no token {HOLE}, expected one for"):
        list(respond(Holed(detokenizer), request, iter(steps)))
