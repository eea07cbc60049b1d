"""From a user's text to the prompt's token ids."""

from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .config import UserError


def chat_prompt(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Token ids of ``text`` as the user's only turn, up to where the answer begins.

    Args:
        tokenizer: without a chat template, the text is the prompt.
        text: what the user typed.
        template: the adapter's ``prompt_template``; its ``{text}`` becomes the text.

    Raises:
        UserError: the chat template refuses the turn.
    """
    content = text if template is None else template.replace("{text}", text)
    if not tokenizer.has_chat_template:
        return tokenizer.encode(content)
    turn = {"role": "user", "content": content}
    try:
        prompt = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(f"the tokenizer's chat template fails: {error}") from None
    return tokenizer.encode(prompt, add_special_tokens=False)
