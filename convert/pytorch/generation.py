"""Generation of many texts at once: what a model answers, and what it draws as its user's words.

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
from specstream_mlx.models.architectures import key_size
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
    """A text that a model wrote behind a prompt, and whether it came to its end."""

    text: str
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
        ends = self.tokenizer.eos_token_ids
        found = self._generated(encoded, ends, most_tokens, sampled=False)
        # An answer that was cut may end within a character.
        texts = [self.tokenizer.decode(tokens).rstrip("\ufffd") for tokens, _ in found]
        return [Written(text, ended) for text, (_, ended) in zip(texts, found, strict=True)]

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
        begun = [opening.rstrip(" ") for opening in openings]
        draws = self._drawn(begun, seed)
        prompts = [(a + draw.text).strip() for a, draw in zip(begun, draws, strict=True)]
        return self._fit(draws, prompts, prompts)

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
        begun = [f"{passage}\n" for passage in passages]
        draws = self._drawn(begun, seed)
        said = [draw.text.strip() for draw in draws]
        return self._fit(draws, said, [a + b for a, b in zip(begun, said, strict=True)])

    def _drawn(self, openings: Sequence[str], seed: int) -> list[Written]:
        """What is drawn behind each opening. A blank at its end would be drawn, not read."""
        _, asker = turn_of(self.tokenizer, None)
        before, _ = around_user(self.tokenizer)
        texts = [f"{before}{opening}".rstrip(" ") for opening in openings]
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        torch.manual_seed(seed)
        found = self._generated(encoded, asker.eos_token_ids, MOST_TOKENS, sampled=True)
        decode, draws = self.tokenizer.decode, []
        for tokens, (drawn, ended) in zip(encoded, found, strict=True):
            # Decoded with what is before it, or a blank between the two may be lost.
            draws.append(Written(decode([*tokens, *drawn])[len(decode(tokens)) :], ended))
        return draws

    def _fit(
        self, draws: Sequence[Written], judged: Sequence[str], prompts: Sequence[str]
    ) -> list[str]:
        """The prompts whose draws are fit, by what is judged of each; none begins as another."""
        controls = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        kept: dict[str, str] = {}
        for draw, text, prompt in zip(draws, judged, prompts, strict=True):
            if fault_of(text, draw.ended, controls, "latin") is None:
                kept.setdefault(beginning(prompt), prompt)
        return list(kept.values())

    @torch.no_grad()
    def _generated(
        self,
        prompts: Sequence[Sequence[int]],
        ends: Collection[int],
        most_tokens: int,
        *,
        sampled: bool,
    ) -> list[tuple[list[int], bool]]:
        """The tokens behind each prompt, and whether they ended; similar lengths go together."""
        drawing = {"do_sample": True, "temperature": 1.0, "top_p": _TOP_P, "top_k": 0}
        padding = min(ends)
        generation = GenerationConfig(
            max_new_tokens=most_tokens,
            eos_token_id=sorted(ends),
            pad_token_id=padding,
            **(drawing if sampled else {"do_sample": False}),
        )
        found: dict[int, tuple[list[int], bool]] = {}
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
                found[place] = row[:until], until is not None
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
        of_token = 2 * 4 * config.num_hidden_layers * key_size(config.to_dict())  # float32 at most
        of_row = 4 * 4 * config.vocab_size  # logits, and copies in which they are sorted
        share = torch.cuda.mem_get_info(self._device)[0] // _SHARE
        return max(1, share // of_token), max(1, share // of_row)
