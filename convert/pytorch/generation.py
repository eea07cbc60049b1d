"""Generation of many texts at once: what a model answers, and what it draws as its user's words.

Streams must foresee the model's own text, so this is what they learn from. ``specstream-mlx train
--prompts self`` does the same in MLX.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, GenerationConfig
from transformers.cache_utils import DynamicLayer

from specstream_mlx.files import read_json
from specstream_mlx.loading.load import read_tokenizer
from specstream_mlx.models.architectures import completed, head_size
from specstream_mlx.prompts import around_user
from specstream_mlx.terminal.progress import track
from specstream_mlx.train.self_prompts import MOST_TOKENS, beginning, fault_of, turn_of

from .load import load_base, mount_lora
from .training_run import is_quick_in_bf16, training_device

TOKENS_AT_ONCE = 1 << 13
"""Most tokens of the texts that a CPU generates at once, prompts included."""
_SHARE = 8
"""A GPU's KV caches may use one in so many parts of its free memory, and logits another one: other
processes, products and copies need the rest."""

_ROOM = 256
"""Tokens that a layer's keys and values get room for."""

_TOP_P = 0.95
_MOST_TOKENS = 2048
"""Most tokens of a conversation with its answer."""


class RoomyLayer(DynamicLayer):
    """A layer's keys and values with room for further ones: a new row is no copy of all others."""

    room: Tensor | None = None  # (2, B, Hkv, rows, d)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values (B, Hkv, n, d), and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new, before = torch.stack((key_states, value_states)), self.get_seq_length()
        end = before + new.shape[3]
        if self.room is None or self.room.shape[3] < end:
            room = new.new_empty(*new.shape[:3], end + _ROOM, new.shape[4])
            if self.room is not None:
                room[..., :before, :] = self.room[..., :before, :]
            self.room = room
        self.room[..., before:end, :] = new
        self.keys, self.values = self.room[..., :end, :]
        return self.keys, self.values


class WrittenAnswer(NamedTuple):
    """A text that a model wrote after a prompt, and whether it came to its end."""

    text: str
    ended: bool


class AnswerWriter:
    """A base that writes texts, with the LoRA of an adapter or without, as the trainer computes it.

    ``lora`` is a directory in PEFT's format.
    """

    def __init__(self, model_dir: Path, lora: Path | None = None) -> None:
        self._device = training_device()
        dtype = torch.bfloat16 if is_quick_in_bf16(self._device) else torch.float32
        model: Any = load_base(model_dir, str(dtype).removeprefix("torch."))
        if lora is not None:
            model = mount_lora(model, lora)
        self._model = model.to(self._device, dtype).eval()
        self.tokenizer = read_tokenizer(model_dir, read_json(model_dir / "config.json"))
        self._tokens_at_once, self._rows_at_once = self._room()

    def answers(
        self, prompts: Sequence[Sequence[int]], most_tokens: int, *, sampled: bool = False
    ) -> list[WrittenAnswer]:
        """Answer prompts with the likeliest tokens, or with ``sampled`` ones at temperature 1.

        A prompt that leaves no room for ``most_tokens`` in 2,048 gets an empty answer.
        """
        short = [i for i, tokens in enumerate(prompts) if len(tokens) + most_tokens <= _MOST_TOKENS]
        ends, answers = self.tokenizer.eos_token_ids, [WrittenAnswer("", True)] * len(prompts)
        wanted = [prompts[i] for i in short]
        written = self._generated(wanted, ends, most_tokens, sampled=sampled, top_p=1.0)
        for i, (tokens, ended) in zip(short, written, strict=True):
            # An answer that was cut may end within a character.
            answers[i] = WrittenAnswer(self.tokenizer.decode(tokens).rstrip("\ufffd"), ended)
        return answers

    def draw(self, openings: Sequence[str], seed: int) -> list[str]:
        """Draw what the model's user might say, and return what is fit to be a prompt.

        Each draw begins with the words of an opening, if it has any; after one that ends with a
        line, what follows alone has to be fit. No two of the prompts begin alike.
        """
        _, asker = turn_of(self.tokenizer, None)
        before, _ = around_user(self.tokenizer)
        begun = [opening.rstrip(" ") for opening in openings]  # a blank at the end would be drawn
        texts = [f"{before}{opening}".rstrip(" ") for opening in begun]
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        torch.manual_seed(seed)
        continuations = self._generated(encoded, asker.eos_token_ids, MOST_TOKENS, sampled=True)
        controls = [t.content for t in self.tokenizer.added_tokens_decoder.values() if t.special]
        decode, fit = self.tokenizer.decode, dict[str, str]()
        for opening, tokens, (drawn, ended) in zip(begun, encoded, continuations, strict=True):
            # Decoded with what is before it, or a blank between the two may be lost.
            text = decode([*tokens, *drawn])[len(decode(tokens)) :]
            judged = prompt = f"{opening}{text}".strip()
            if opening.endswith("\n"):
                judged, prompt = text.strip(), opening + text.strip()
            if fault_of(judged, ended, controls, "latin") is None:
                fit.setdefault(beginning(prompt), prompt)
        return list(fit.values())

    @torch.no_grad()
    def _generated(
        self,
        prompts: Sequence[Sequence[int]],
        ends: Collection[int],
        most_tokens: int,
        *,
        sampled: bool,
        top_p: float = _TOP_P,
    ) -> list[tuple[list[int], bool]]:
        """The tokens after each prompt, and whether they ended; similar lengths go together."""
        drawing = {"do_sample": True, "temperature": 1.0, "top_p": top_p, "top_k": 0}
        padding = min(ends)
        generation = GenerationConfig(
            max_new_tokens=most_tokens,
            eos_token_id=sorted(ends),
            pad_token_id=padding,
            **(drawing if sampled else {"do_sample": False}),
        )
        by_place: dict[int, tuple[list[int], bool]] = {}
        for places in track(self._groups(prompts, most_tokens), "writing"):
            width = len(prompts[places[-1]])
            tokens = torch.full((len(places), width), padding)
            mask = torch.zeros_like(tokens)
            for row, place in enumerate(places):  # padded on the left
                length = len(prompts[place])
                tokens[row, width - length :] = torch.tensor(prompts[place])
                mask[row, width - length :] = 1
            output = self._model.generate(
                tokens.to(self._device),
                attention_mask=mask.to(self._device),
                generation_config=generation,
                past_key_values=Cache(layer_class_to_replicate=RoomyLayer),
            )[:, width:].tolist()
            for place, row in zip(places, output, strict=True):
                until = next((i for i, token in enumerate(row) if token in ends), None)
                by_place[place] = row[:until], until is not None
        return [by_place[place] for place in range(len(prompts))]

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
        sizes = completed(config.to_dict())
        heads = sizes.get("num_key_value_heads") or sizes["num_attention_heads"]
        of_token = 2 * 4 * config.num_hidden_layers * heads * head_size(sizes)  # float32 at most
        of_row = 4 * 4 * config.vocab_size  # logits, and copies in which they are sorted
        share = torch.cuda.mem_get_info(self._device)[0] // _SHARE
        return max(1, share // of_token), max(1, share // of_row)
