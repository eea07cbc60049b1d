"""Chat templates with the rules of published ones, in words of our own, and their tokenizer."""

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from tiny_models import tiny_tokenizer

MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]

# As Qwen3's: one system message; thoughts of the turns since the last question; a switch that
# leaves an empty thought.
SWITCHED = """\
{%- macro call(tool_call) -%}<tool_call>
{{ {"name": tool_call.name, "arguments": tool_call.arguments} | tojson }}
</tool_call>{%- endmacro -%}
{%- set ns = namespace(asked=-1) -%}
{%- for m in messages -%}
{%- if m.role == "user" -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|system|>{{ tools | tojson }}<|end|>{%- endif -%}
{%- for m in messages -%}
{%- if m.role == "system" and not loop.first -%}
{{ raise_exception("the system message comes first") }}
{%- endif -%}
<|{{ m.role }}|>
{%- if m.role == "assistant" and m.reasoning_content and loop.index0 > ns.asked -%}
<think>
{{ m.reasoning_content }}
</think>

{% endif -%}
{{ m.content }}{%- for one in m.tool_calls or [] -%}{{ call(one.function) }}{%- endfor -%}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>
{%- if enable_thinking is defined and not enable_thinking -%}<think>

</think>

{% endif -%}
{%- endif -%}"""

# As DeepSeek-R1's: the thought is opened in the prompt, and earlier ones are cut out.
OPENING = """\
{%- for m in messages -%}<|{{ m.role }}|>{{ m.content.split("</think>")[-1] }}<|end|>{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|><think>
{% endif -%}"""


def thinking_tokenizer(template=SWITCHED):
    """The tiny tokenizer with marks of thoughts and calls, as Hugging Face has it."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(MARKS)
    tokenizer.chat_template = template
    return tokenizer


def wrapped(template=SWITCHED):
    return TokenizerWrapper(
        thinking_tokenizer(template),
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )
