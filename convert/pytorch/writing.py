"""Texts that a model writes, many at once: what it answers, and what it draws as its user's words.

Streams must foresee the model's own text, so this is what they learn from. ``specstream-mlx train
--prompts self`` does the same in MLX.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from specstream_mlx.checked_files import read_json
from specstream_mlx.loading import read_tokenizer
from specstream_mlx.prompts import around_user, chat_prompt
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.self_prompts import MOST_TOKENS, beginning, fault_of, turn_of

from .load import load_base, mount_lora
from .training_run import is_quick_in_bf16, training_device

TOKENS_AT_ONCE = 1 << 13
"""Of the texts that a CPU writes at once, prompts included."""
_SHARE = 8
"""A GPU's KV caches may take one part in so many of its free memory, and logits another: other
processes may run beside this one, and products and copies need theirs."""

_TOP_P = 0.95


@dataclass(frozen=True)
class Written:
    """A text that a model wrote behind a prompt, its tokens, and whether it came to its end."""

    text: str
    tokens: list[int]
    ended: bool


class Writer:
    """A base that writes texts, with the LoRA of an adapter or without, as the trainer computes it.

    Args:
        model_dir: directory of the base.
        lora: PEFT directory of the LoRA; ``None``: none.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(self, model_dir: Path, lora: Path | None = None) -> None:
        self._device = training_device()
        self._in_bf16 = is_quick_in_bf16(self._device)
        model: Any = load_base(model_dir, "bfloat16" if self._in_bf16 else "float32")
        if lora is not None:
            model = mount_lora(model, lora)
        self._model = model.to(self._device).eval()
        self.tokenizer = read_tokenizer(model_dir, read_json(model_dir / "config.json"))
        self._tokens_at_once, self._rows_at_once = self._room()

    def answers(
        self, prompts: Sequence[str], template: str | None, most_tokens: int
    ) -> list[Written]:
        """Answer each prompt as the user's only turn, by the likeliest tokens.

        Args:
            prompts: what the user says.
            template: text with ``{text}`` where a prompt goes; ``None``: the prompt alone.
            most_tokens: of an answer.

        Raises:
            UserError: the chat template refuses a prompt.
        """
        encoded = [chat_prompt(self.tokenizer, prompt, template) for prompt in prompts]
        return self._written(encoded, self.tokenizer.eos_token_ids, most_tokens, sampled=False)

    def draw_prompts(self, openings: Sequence[str], seed: int) -> list[str]:
        """Draw what the model's user might say, and keep what is fit to be a prompt.

        Args:
            openings: the words that each draw begins with, which may be none.
            seed: of the draws.

        Returns:
            Prompts with their openings, of which no two begin alike; fewer than draws.

        Raises:
            UserError: there is no chat template, or it leaves out what the user says.
        """
        drawn = self._drawn(openings, seed)
        whole = [(opening + text, ended) for opening, (text, ended) in drawn]
        return self._fit([(text.strip(), text.strip(), ended) for text, ended in whole])

    def draw_questions(self, passages: Sequence[str], seed: int) -> list[str]:
        """Draw what the model's user might say about passages, and keep what is fit.

        Args:
            passages: texts; a line of the user's follows each.
            seed: of the draws.

        Returns:
            Passages with what is said about them; fewer than draws.

        Raises:
            UserError: as ``draw_prompts``.
        """
        drawn = self._drawn([f"{passage}\n" for passage in passages], seed)
        return self._fit([(said.strip(), f"{p}{said.strip()}", end) for p, (said, end) in drawn])

    def _drawn(self, openings: Sequence[str], seed: int) -> list[tuple[str, tuple[str, bool]]]:
        """Each opening with the text that was drawn behind it, and whether that ended."""
        _, asker = turn_of(self.tokenizer, None)
        before, _ = around_user(self.tokenizer)
        # A blank at the end is drawn: most vocabularies' words begin with theirs.
        encoded = [self._encode(f"{before}{opening}".rstrip(" ")) for opening in openings]
        torch.manual_seed(seed)
        found = self._written(encoded, asker.eos_token_ids, MOST_TOKENS, sampled=True)
        drawn = []
        for opening, tokens, draw in zip(openings, encoded, found, strict=True):
            # Decoded with what is before it, or a blank between the two may be lost.
            whole = self.tokenizer.decode([*tokens, *draw.tokens])
            text = whole[len(self.tokenizer.decode(tokens)) :]
            drawn.append((opening.rstrip(" "), (text, draw.ended)))
        return drawn

    def _fit(self, draws: Sequence[tuple[str, str, bool]]) -> list[str]:
        """The prompts of those draws that are fit: what is judged, the prompt, whether it ended."""
        controls = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        kept: dict[str, str] = {}
        for judged, prompt, ended in draws:
            if fault_of(judged, ended, controls, "latin") is None:
                kept.setdefault(beginning(prompt), prompt)
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
        padding = min(ends)
        generation = GenerationConfig(
            max_new_tokens=most_tokens,
            eos_token_id=sorted(ends),
            pad_token_id=padding,
            **(drawing if sampled else {"do_sample": False}),
        )
        found: dict[int, Written] = {}
        for places in track(self._groups(prompts, most_tokens), "writing"):
            width = len(prompts[places[-1]])
            tokens = torch.full((len(places), width), padding)
            mask = torch.zeros_like(tokens)
            for row, place in enumerate(places):  # padded on the left
                length = len(prompts[place])
                tokens[row, width - length :] = torch.tensor(prompts[place])
                mask[row, width - length :] = 1
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._in_bf16):
                output = self._model.generate(
                    tokens.to(self._device),
                    attention_mask=mask.to(self._device),
                    generation_config=generation,
                )[:, width:].tolist()
            for place, row in zip(places, output, strict=True):
                until = next((i for i, token in enumerate(row) if token in ends), None)
                # A text that was cut may end within a character.
                text = self.tokenizer.decode(row[:until]).rstrip("\ufffd")
                found[place] = Written(text, row[:until], until is not None)
        return [found[place] for place in range(len(prompts))]

    def _groups(self, prompts: Sequence[Sequence[int]], most_tokens: int) -> list[list[int]]:
        """The places of the prompts that are read together, the longest of each group last."""
        groups: list[list[int]] = []
        for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
            width, rows = len(prompts[place]) + most_tokens, len(groups[-1]) + 1 if groups else 1
            full = rows * width > self._tokens_at_once or rows > self._rows_at_once
            if not groups or full:
                groups.append([])
            groups[-1].append(place)
        return groups

    def _room(self) -> tuple[int, int]:
        """The tokens and the rows of the texts that are written at once."""
        if self._device.type == "cpu":
            return TOKENS_AT_ONCE, TOKENS_AT_ONCE
        config = self._model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        of_token = 2 * 4 * config.num_hidden_layers * heads * size  # float32 at most
        of_row = 4 * 4 * config.vocab_size  # logits, and copies in which they are sorted
        share = torch.cuda.mem_get_info(self._device)[0] // _SHARE
        return max(1, share // of_token), max(1, share // of_row)
