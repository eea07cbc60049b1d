"""A server whose models write what a test wants, and tools that they may call."""

from functools import partial

import mlx.core as mx

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "noon", "description": "Says when noon is."}},
]
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]


def only(text, prompt_tokens, tokens, logits):
    """A logits processor that lets a text be nothing but the planted one."""
    place = min(len(tokens) - prompt_tokens, len(text) - 1)
    return mx.where(mx.arange(logits.shape[-1]) == text[place], logits, -mx.inf)


class Planting:
    """A service whose texts are ``text``, unless a mask forbids that; its prompts, the last ids."""

    def __init__(self, text, resident):
        self.service, self.prompts, self.text = resident.service(), [], text
        tokenizer, jobs = resident.tokenizer, self.service.jobs

        def planted(request):
            ids = [*tokenizer.encode(self.text, add_special_tokens=False), tokenizer.eos_token_id]
            self.ids, made = ids, jobs(request)
            for job in made:
                self.prompts.append(tokenizer.decode(job.prompt))
                job.processors = [partial(only, ids, len(job.prompt)), *job.processors]
            return made

        self.service.jobs = planted
