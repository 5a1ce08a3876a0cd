"""Renders a chat with the model's Jinja template, as transformers does, in a sandbox with limits.

A template comes with a model and is not trusted: it has the functions of template_functions, a
deadline, and limits on each value and on all that it makes (template_budget). The time is looked at
in every loop step, call, filter, operator and piece of output. One such step after the deadline may
take two seconds more; one that turns the largest value into many small ones may hold a GiB
beside the values made, which have another GiB at most.

Source: https://huggingface.co/docs/transformers/chat_templating_writing for what templates see,
https://huggingface.co/docs/transformers/chat_templating for continue_final_message.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import jinja2

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler import template_budget
from scheduler.bounded_template import compile_template
from scheduler.template_budget import Budget

_MAX_TEMPLATE_CHARS = 1 << 17
_MAX_OUTPUT_CHARS = template_budget.MAX_WEIGHT
_MAX_REASON_CHARS = 1000
_DEADLINE_S = 5.0
_FIELD = "chat"

ChatEnd = Literal["assistant", "final message", "inside final message"]
"""Where a rendered chat ends: where the assistant begins to speak, behind the last message with all
that the template puts there, or inside it, so that the output goes on with it."""

# What a template's own mistakes raise, beside jinja2's errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a chat."""

    role: str
    content: str


def chat_end(*, add_generation_prompt: bool | None, continue_final_message: bool) -> ChatEnd:
    """Return where a chat's prompt ends; None stands for an absent field."""
    if not continue_final_message:
        return "final message" if add_generation_prompt is False else "assistant"
    if add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message are both set, at most 1 may be: "
            "either the assistant begins to speak or the last message goes on",
            field="chat.continue_final_message",
        )
    return "inside final message"


class ChatTemplate:
    """A compiled template; may render on several threads at once."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], dt.datetime] = dt.datetime.now,
        deadline_s: float = _DEADLINE_S,
        max_output_chars: int = _MAX_OUTPUT_CHARS,
    ) -> None:
        """Compile; special_tokens such as bos_token are variables of the template.

        Raises:
            ConfigError: the template is too large, not valid, or uses an unknown filter.
        """
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ConfigError(
                f"chat template has {len(source)} characters, limit {_MAX_TEMPLATE_CHARS}"
            )
        try:
            self._template = compile_template(source, now)
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise ConfigError(f"chat template is not valid: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._deadline_s = deadline_s
        self._max_output_chars = max_output_chars

    def render(self, messages: Sequence[ChatMessage], end: ChatEnd = "assistant") -> str:
        """Return the prompt. Blocks up to the deadline.

        Raises:
            InvalidRequest: there are no messages, the template refuses them, a limit is passed, or
                the last message is to go on but the template has changed it.
        """
        if not messages:
            raise InvalidRequest("chat has no messages, at least 1 needed", field=_FIELD)
        if end != "inside final message":
            return self._render(messages, add_generation_prompt=end == "assistant")
        final = messages[-1]
        mark = f"END{secrets.token_hex(16)}".upper()
        marked = dataclasses.replace(final, content=f"{final.content}{mark} ")
        text = self._render([*messages[:-1], marked], add_generation_prompt=False)
        return _cut_at_mark(text, mark, final.content)

    def _render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        variables = self._special_tokens | {
            "messages": [dataclasses.asdict(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        budget = Budget(self._deadline_s)
        token = template_budget.current.set(budget)
        try:
            budget.check(*variables.values())
            return self._join(self._template.generate(variables))
        except _TEMPLATE_FAULTS as error:
            reason = (str(error) or type(error).__name__)[:_MAX_REASON_CHARS]
            raise InvalidRequest(f"the chat template refused: {reason}", field=_FIELD) from error
        finally:
            template_budget.current.reset(token)

    def _join(self, pieces: Iterator[str]) -> str:
        """Collect the output while it is within its limits."""
        text: list[str] = []
        num_chars = 0
        for piece in pieces:
            num_chars += len(piece)
            if num_chars > self._max_output_chars:
                raise jinja2.TemplateRuntimeError(
                    f"output is longer than {self._max_output_chars} characters"
                )
            text.append(piece)
        return "".join(text)


def _cut_at_mark(text: str, mark: str, content: str) -> str:
    """Return what a template has written up to the end of the final message's content.

    The content was rendered with the mark and a blank behind it. A template that trims what it
    prints drops the blank; the content's own blanks at its end are dropped then, too.
    """
    position = text.rfind(mark)
    if position < 0 or content.strip() not in text:
        raise InvalidRequest(
            "continue_final_message is set, but the chat template does not show the last message "
            "as it is; send one without what the template takes out, or the rendered text",
            field=_FIELD,
        )
    is_trimmed = not text.startswith(" ", position + len(mark))
    # A template may print the content more than once.
    before = text[:position].replace(f"{mark} ", "").replace(mark, "")
    return before.rstrip() if is_trimmed else before
