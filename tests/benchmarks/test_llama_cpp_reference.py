"""llama.cpp as an outside reference: how its passes are counted, on a stand-in for its package."""

import sys
from types import ModuleType

import pytest

from benchmarks.llama_cpp_reference import LLAMA, LLAMA_LOOKUP, llama_ways


class Llama:
    """Writes 10, 11, ..; with drafts three tokens a pass behind the first one."""

    def __init__(self, path, *, draft_model, **_):
        self._a_pass = 3 if draft_model else 1

    def reset(self):
        self._next = 10

    def eval(self, tokens):
        assert tokens

    def generate(self, tokens, *, temp, repeat_penalty):
        assert (temp, repeat_penalty) == (0.0, 1.0)
        self.eval(tokens)
        yield self._next
        while True:
            self.eval([self._next])
            for _ in range(self._a_pass):
                self._next += 1
                yield self._next

    def detokenize(self, tokens):
        return bytes(tokens)


@pytest.fixture
def installed(monkeypatch):
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    package.Llama = Llama
    speculative.LlamaPromptLookupDecoding = lambda num_pred_tokens: num_pred_tokens
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


@pytest.mark.usefixtures("installed")
def test_passes_are_counted_and_texts_end_as_ours_do():
    ways = llama_ways("file", 64, 9, ends={17})
    plain, lookup = (ways[name]([1, 2]) for name in (LLAMA, LLAMA_LOOKUP))
    assert plain.tokens == lookup.tokens == [10, 11, 12, 13, 14, 15, 16, 17]
    assert (plain.target_calls, lookup.target_calls) == (8, 4)
    assert lookup.lengths == [1, 3, 3, 1]
    assert len(llama_ways("file", 64, 5, ends={17})[LLAMA]([1]).tokens) == 5
    assert plain.decode_tps > 0 and plain.seconds >= (len(plain.tokens) - 1) / plain.decode_tps
