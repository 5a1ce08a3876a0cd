"""Templates render as in transformers, and a hostile one cannot hold the scheduler."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler.chat_template import ChatMessage, ChatTemplate
from tests.chat_templates import CHAT, TEMPLATES


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_renders_as_transformers_does(source: str) -> None:
    """A prompt that differs in one blank gives other tokens than the model was trained on."""
    chat = [{"role": message.role, "content": message.content} for message in CHAT]
    (expected,), _ = render_jinja_template(
        [chat],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",  # noqa: S106 -- a token of the model
    )
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(CHAT) == expected


def test_templates_may_write_the_date() -> None:
    """Some models' system prompts begin with it."""
    today = dt.datetime(2025, 3, 1, tzinfo=dt.UTC)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: today)
    assert template.render(CHAT) == "01 Mar 2025"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages + 1 }}", "concatenate"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ lipsum(n=999999999) }}", "'lipsum' is undefined"),
    ],
)
def test_a_template_fault_is_the_requests_error(source: str, reason: str) -> None:
    """The client gets the template's words, and the scheduler goes on."""
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        ChatTemplate(source, {}).render(CHAT)
    assert refusal.value.field == "chat"


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) if n < 40 }}{{ f(n + 1) if n < 40 }}{% endmacro %}{{ f(0) }}",
        "{% for a in range(999999) %}{% for m in messages * 99999 %}x{% endfor %}{% endfor %}",
    ],
)
def test_an_endless_template_is_stopped(source: str) -> None:
    """Jinja has no time limit; these would run for hours."""
    template = ChatTemplate(source, {}, deadline_s=0.2)
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="takes too long"):
        template.render(CHAT)
    assert time.process_time() - started < 10


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for a in range(3000000) %}{% endfor %}", "range is longer"),
        ("{{ 'x' * 99999999999 }}", "repetition is longer"),
        ("{{ 9 ** 99 ** 99 }}", "power has more than"),
        ("{% for a in range(100) %}{{ 'x' * 1000 }}{% endfor %}", "longer than 5000 characters"),
    ],
)
def test_a_huge_template_result_is_refused(source: str, reason: str) -> None:
    """Memory of the scheduler is not the template's to take."""
    with pytest.raises(InvalidRequest, match=reason):
        ChatTemplate(source, {}, max_output_chars=5000).render(CHAT)


DOUBLED = "{{% set ns = namespace(x={start}) %}}{{% for i in range(99) %}}{step}{{% endfor %}}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ (['a'] * 1000000) | join('b' * 1000) }}", "longer than"),
        ("{{ ('b' * 1000).join(['a'] * 1000000) }}", "longer than"),
        ("{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}", "longer than"),
        ("{{ ('a' * 1000000).replace('', 'b' * 1000) }}", "longer than"),
        ("{{ ('a\\n' * 1000000) | indent(1000) }}", "longer than"),
        ("{{ '%1000000000d' % 1 }}", "format"),
        ("{{ '%*d' | format(1000000000, 1) }}", "format"),
        ("{{ ('%s' * 9999) | format('a' * 9999) }}", "longer than"),
        ("{{ '{:1000000000}'.format(1) }}", "'format' of 'str' object is unsafe"),
        ("{{ 'a'.center(1000000000) }}", "'center' of 'str' object is unsafe"),
        ("{{ 'a'.encode() }}", "unsafe"),
        ("{{ (5).to_bytes(1000000000, 'big') }}", "unsafe"),
        ("{{ 5 | round(-1000000000) }}", "precision"),
        ("{{ range(999999) | unique | list }}", "more than 4096"),
        ("{{ ([[]] * 99999) | sum(start=[0] * 99999) }}", "sum must start"),
        ("{{ ('a' * 9999999).strip('b' * 9999999) }}", "argument is longer"),
        ("{{ messages | tojson(indent=1000000000) }}", "indent"),
        ("{{ strftime_now('%d' * 9999) }}", "date format"),
        (DOUBLED.format(start="'ab'", step="{% set ns.x = ns.x ~ ns.x %}"), "longer than"),
        (DOUBLED.format(start="'ab'", step="{% set ns.x = ns.x + ns.x %}"), "longer than"),
        (DOUBLED.format(start="[1]", step="{% set ns.x = ns.x + ns.x %}"), "longer than"),
        (DOUBLED.format(start="[1]", step="{% set ns.x = [ns.x, ns.x] %}"), "longer than"),
        (DOUBLED.format(start="9", step="{% set ns.x = ns.x * ns.x %}"), "more than 16384 bits"),
        (DOUBLED.format(start="1", step="{% set ns.x = namespace(a=ns.x) %}") + "{{ ns }}", "nam"),
        (
            DOUBLED.format(start="'ab'", step="{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
            "longer than|more than 1073741824 bytes",
        ),
        (
            "{% macro f(n) %}{{ f((n, varargs, varargs), varargs, n) }}{% endmacro %}{{ f(1, 2) }}",
            "longer than|recursion",
        ),
        (
            DOUBLED.format(start="[]", step="{% set ns.x = ns.x + ['%d' % i ~ 'x' * 999999] %}"),
            "longer than|more than 1073741824 bytes",
        ),
    ],
)
def test_no_single_expression_explodes(source: str, reason: str) -> None:
    """Each is a few characters, and would take gigabytes or minutes before any loop step."""
    started = time.process_time()
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        ChatTemplate(source, {}).render(CHAT)
    assert time.process_time() - started < 5
    assert len(str(refusal.value)) < 2000


@pytest.mark.parametrize(
    "source",
    [
        "{{ ('a' * 500000) | wordwrap(1) | length }}",
        "{% if false %}{{ 'a' | wordwrap(1) }}{% endif %}",
        "{{ messages | map('wordwrap', 1) | list }}",
        "{{ range(10) | slice(1000000000) | list }}",
    ],
)
def test_an_unknown_filter_stops_the_start(source: str) -> None:
    """Whoever serves the model learns of it, not whoever sends the first chat."""
    with pytest.raises(
        ConfigError, match=r"line 1: filter '(wordwrap|slice)' is not known; .* abs"
    ):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% set l = ['a' * 8000000] * 2 %}{{ [" + "l == ['a' * 8000000] * 2, " * 1000 + "] }}",
        "{{ range(999999)" + " | select('ne', -1)" * 100 + " | list }}",
        "{{ range(999999) | select('in', range(999999) | list) | list }}",
        "{{ range(999999) | map('string') | map('upper') | reject('in', ['X' * 99]) | list }}",
    ],
)
def test_the_time_is_looked_at_between_steps(source: str) -> None:
    """One that began before the deadline may end after it, but no second one begins."""
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="takes too long"):
        ChatTemplate(source, {}, deadline_s=0.1).render(CHAT)
    assert time.process_time() - started < 5


def test_long_chats_render() -> None:
    """The limits are far from what models can read: a million tokens, or thousands of turns."""
    source = (
        "{% set ns = namespace(all='') %}{% for m in messages %}"
        "{% set ns.all = ns.all ~ m.role + ': ' ~ m.content | trim ~ '\\n' %}{% endfor %}"
        "{{ ns.all if messages | length < 999 else messages | tojson }}"
    )
    long = ChatMessage(role="user", content="word " * 1_000_000)
    assert len(ChatTemplate(source, {}).render([long])) > 4_999_999
    turns = [ChatMessage(role="user", content="word " * 2)] * 5000
    assert len(ChatTemplate(source, {}).render(turns)) > 100_000


def test_a_chat_without_messages_is_refused() -> None:
    """Templates would index into nothing."""
    with pytest.raises(InvalidRequest, match="no messages"):
        ChatTemplate("x", {}).render([])


@pytest.mark.parametrize("source", ["{% for %}", "{{", "x" * (1 << 20) + "x"])
def test_a_broken_template_stops_the_start(source: str) -> None:
    """Better than a failure at the first chat."""
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(source, {})
