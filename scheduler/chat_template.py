"""Renders a chat with the model's Jinja template, as transformers does, in a sandbox with limits.

A template comes with a model and is not trusted. Bounded are: its size, the size of what it
renders, the time it takes (looked at in every loop step, call and piece of output), the length of
range() and of repeated text, and powers. Not bounded is the memory of a single other expression.

Source: https://huggingface.co/docs/transformers/chat_templating_writing for what templates see,
https://huggingface.co/docs/transformers/chat_templating for continue_final_message.
"""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from chunkmesh.errors import ConfigError, InvalidRequest

_MAX_TEMPLATE_CHARS = 1 << 20
_MAX_OUTPUT_CHARS = 1 << 26
_MAX_RANGE = 1 << 20
_MAX_POWER_BITS = 4096
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

_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("chat_template_deadline")


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
            ConfigError: the template is too large or not valid.
        """
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ConfigError(
                f"chat template has {len(source)} characters, limit {_MAX_TEMPLATE_CHARS}"
            )
        try:
            self._template = _compile(source, now)
        except (jinja2.TemplateError, RecursionError) as error:
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
        token = _deadline.set(time.monotonic() + self._deadline_s)
        try:
            return self._join(self._template.generate(variables))
        except _TEMPLATE_FAULTS as error:
            reason = str(error) or type(error).__name__
            raise InvalidRequest(f"the chat template refused: {reason}", field=_FIELD) from error
        finally:
            _deadline.reset(token)

    def _join(self, pieces: Iterator[str]) -> str:
        """Collect the output while it is within its limits."""
        text: list[str] = []
        num_chars = 0
        for piece in pieces:
            _check_deadline()
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


class _BoundedSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of jinja2, with a deadline in every call and limits on operators."""

    intercepted_binops = frozenset({"*", "**"})

    def call(
        self,
        context: jinja2.runtime.Context,
        obj: Any,  # noqa: ANN401
        /,
        *args: Any,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        _check_deadline()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(
        self,
        context: jinja2.runtime.Context,
        operator: str,
        left: Any,  # noqa: ANN401
        right: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if (
            operator == "**"
            and isinstance(left, int)
            and left.bit_length() * right > _MAX_POWER_BITS
        ):
            raise jinja2.TemplateRuntimeError(f"power has more than {_MAX_POWER_BITS} bits")
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and len(text) * count > _MAX_RANGE:
                    raise jinja2.TemplateRuntimeError(f"repetition is longer than {_MAX_RANGE}")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(jinja2.ext.Extension):
    """Accepts the tag with which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012 -- declared so by jinja2

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _compile(source: str, now: Callable[[], dt.datetime]) -> jinja2.Template:
    """Compile with a deadline in every loop."""
    environment = _BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["within_deadline"] = _within_deadline
    del environment.globals["lipsum"]
    environment.globals["range"] = _bounded_range
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    tree = environment.parse(source)
    for loop in list(tree.find_all(jinja2.nodes.For)):
        loop.iter = jinja2.nodes.Filter(
            loop.iter, "within_deadline", [], [], None, None, lineno=loop.lineno
        )
    tree.set_environment(environment)
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def _check_deadline() -> None:
    if time.monotonic() > _deadline.get():
        raise jinja2.TemplateRuntimeError("it takes too long")


def _within_deadline(items: Iterable[Any]) -> Iterator[Any]:
    """Pass the items of a loop on."""
    for item in items:
        _check_deadline()
        yield item


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > _MAX_RANGE:
        raise jinja2.TemplateRuntimeError(f"range is longer than {_MAX_RANGE}")
    return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,  # noqa: ANN401 -- templates pass anything
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace jinja2's filter, which escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
