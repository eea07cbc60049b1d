"""Texts that a model writes, many at once: what it answers, and what it draws as its user's words.

Streams must foresee the model's own text, so this is what they learn from. On a GPU thousands of
texts are written at once; ``specstream-mlx train --prompts self`` does the same in MLX.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import AutoTokenizer, GenerationConfig

from specstream_mlx.checked_files import tokenizer_files
from specstream_mlx.config import UserError
from specstream_mlx.prompts import around_user, in_template
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.self_prompts import MOST_TOKENS, beginning, fault_of, turn_of

from .load import load_base, mount_lora
from .training_run import is_quick_in_bf16, training_device

TOKENS_AT_ONCE, TOKENS_AT_ONCE_ON_GPU = 1 << 13, 1 << 18
"""Of all texts that are written at once, prompts included: what their KV caches hold."""

_TOP_P = 0.95


@dataclass(frozen=True)
class Written:
    """A text that a model wrote behind a prompt, its tokens, and whether it came to its end."""

    text: str
    tokens: list[int]
    ended: bool


class Writer:
    """A base that writes texts, with the LoRA of an adapter or without.

    Args:
        model_dir: directory of the base.
        lora: PEFT directory of the LoRA; ``None``: none.

    Raises:
        UserError: a file is missing or damaged, or the tokenizer has no end token.
    """

    def __init__(self, model_dir: Path, lora: Path | None = None) -> None:
        with tokenizer_files(model_dir):
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                model_dir, local_files_only=True, trust_remote_code=False
            )
        if self.tokenizer.eos_token_id is None:
            raise UserError(f"the tokenizer of {model_dir} has no end token")
        device = training_device()
        model: Any = load_base(model_dir)
        if lora is not None:
            model = mount_lora(model, lora).merge_and_unload()
        kind = torch.bfloat16 if is_quick_in_bf16(device) else torch.float32
        self._model = model.to(device, kind).eval()
        self._tokens_at_once = TOKENS_AT_ONCE if device.type == "cpu" else TOKENS_AT_ONCE_ON_GPU

    def answers(
        self, prompts: Sequence[str], template: str | None, most_tokens: int
    ) -> list[Written]:
        """Answer each prompt as the user's only turn, by the likeliest tokens.

        Args:
            prompts: what the user says.
            template: text with ``{text}`` where a prompt goes; ``None``: the prompt alone.
            most_tokens: of an answer.
        """
        before, after = around_user(self.tokenizer)
        encoded = [
            self._encode(f"{before}{in_template(prompt, template)}{after}") for prompt in prompts
        ]
        ends = {self.tokenizer.eos_token_id}
        return self._written(encoded, ends, most_tokens, sampled=False)

    def draw_prompts(self, openings: Sequence[str], seed: int) -> list[str]:
        """Draw what the model's user might say, and keep what is fit to be a prompt.

        Args:
            openings: what each draw begins with, which may be nothing.
            seed: of the draws.

        Returns:
            Prompts with their openings, of which no two begin alike; fewer than draws.
        """
        before, _ = around_user(self.tokenizer)
        _, asker = turn_of(TokenizerWrapper(self.tokenizer), None)
        # a blank at the end is drawn: most vocabularies' words begin with theirs
        encoded = [self._encode(f"{before}{opening}".rstrip(" ")) for opening in openings]
        torch.manual_seed(seed)
        found = self._written(encoded, asker.eos_token_ids, MOST_TOKENS, sampled=True)
        controls = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        kept: dict[str, str] = {}
        for opening, tokens, draw in zip(openings, encoded, found, strict=True):
            # Decoded with what is before it, or a blank between the two may be lost.
            whole = self.tokenizer.decode([*tokens, *draw.tokens])
            drawn = whole[len(self.tokenizer.decode(tokens)) :]
            text = f"{opening.rstrip(' ')}{drawn}".strip()
            # A long opening, such as a passage, is no draw: what comes behind it must be fit.
            judged = text if len(opening) < len(drawn) else drawn.strip()
            if fault_of(judged, draw.ended, controls, "latin") is None:
                kept.setdefault(beginning(text), text)
        return list(kept.values())

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    @torch.no_grad()
    def _written(
        self,
        prompts: Sequence[Sequence[int]],
        ends: Collection[int],
        most_tokens: int,
        *,
        sampled: bool,
    ) -> list[Written]:
        """What is written behind each prompt, those of similar length together."""
        drawing = {"do_sample": True, "temperature": 1.0, "top_p": _TOP_P, "top_k": 0}
        generation = GenerationConfig(
            max_new_tokens=most_tokens,
            eos_token_id=sorted(ends),
            pad_token_id=self.tokenizer.eos_token_id,
            **(drawing if sampled else {"do_sample": False}),
        )
        found: dict[int, Written] = {}
        for places in track(self._groups(prompts, most_tokens), "writing"):
            width = len(prompts[places[-1]])
            tokens = torch.full((len(places), width), self.tokenizer.eos_token_id)
            mask = torch.zeros_like(tokens)
            for row, place in enumerate(places):  # padded on the left
                length = len(prompts[place])
                tokens[row, width - length :] = torch.tensor(prompts[place])
                mask[row, width - length :] = 1
            output = self._model.generate(
                tokens.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                generation_config=generation,
            )[:, width:].tolist()
            for place, row in zip(places, output, strict=True):
                until = next((i for i, token in enumerate(row) if token in ends), None)
                text = self.tokenizer.decode(row[:until])
                found[place] = Written(text, row[:until], until is not None)
        return [found[place] for place in range(len(prompts))]

    def _groups(self, prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        """The places of the prompts that are read together, the longest of each group last."""
        groups: list[list[int]] = []
        for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
            width = len(prompts[place]) + most_tokens
            if not groups or (len(groups[-1]) + 1) * width > self._tokens_at_once:
                groups.append([])
            groups[-1].append(place)
        return groups
