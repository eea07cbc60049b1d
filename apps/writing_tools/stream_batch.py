"""Several texts written at once, with their responses as they come."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from mlx_lm.tokenizer_utils import TokenizerWrapper

from specstream_mlx.generation.batch import Batch
from specstream_mlx.generation.kv_store import PromptCache
from specstream_mlx.generation.request import Progress, Request
from specstream_mlx.generation.sequence import TokenSequence
from specstream_mlx.generation.stream_generate import room
from specstream_mlx.generation.text import GenerationResponse, Text
from specstream_mlx.hardware import running
from specstream_mlx.loading.speculative_model import SpeculativeModel


def stream_batch(
    texts: Sequence[tuple[SpeculativeModel, Sequence[int]]],
    tokenizer: TokenizerWrapper,
    max_tokens: int,
    reading: Progress = lambda read, of: None,
    size: int = 16,
) -> Iterator[tuple[int, GenerationResponse]]:
    """Write after prompts of token ids, ``size`` at once, and yield responses with their numbers.

    Between steps one more prompt is read, so the first one's text comes first; what prompts begin
    with alike is read once. ``reading`` is called with the prompt tokens read so far, and of all.
    """
    waiting, before, of = deque(enumerate(texts)), 0, sum(len(prompt) for _, prompt in texts)
    going: dict[TokenSequence, tuple[int, Text]] = {}
    batch, firsts = Batch(), dict[int, PromptCache]()  # of each model's first text
    with running.wired(texts[0][0].model):
        while waiting or batch:
            if waiting and len(batch) < size and not batch.unread:
                number, (model, prompt) = waiting.popleft()
                first = firsts.get(id(model))
                cache = first.without_spare_rows() if first else PromptCache()
                firsts.setdefault(id(model), cache)
                request = Request(
                    prompt,
                    max_tokens=room(model, prompt, None, max_tokens),
                    end_tokens=tokenizer.eos_token_ids,
                    prompt_cache=cache,
                    progress=partial(lambda before, read, _: reading(before + read, of), before),
                )
                before += len(prompt)
                request.check(model)
                sequence = TokenSequence(model, request)
                batch.add(sequence)
                going[sequence] = number, Text(tokenizer, request)
            for sequence, step in batch.step():
                number, text = going[sequence]
                if step.finish_reason:
                    del going[sequence]
                for response in text.take(step):
                    yield number, response
