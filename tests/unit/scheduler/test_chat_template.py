"""Templates render as in transformers, and a hostile one cannot hold the scheduler."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler.chat_template import ChatMessage, ChatTemplate

CHAT = (
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="1 < 2 & '\u00e9'?"),
)

TEMPLATES = {
    "trimmed blocks": "{% for m in messages %}\n  {% if m.role == 'user' %}\nU: {{ m.content }}\n"
    "  {% endif %}\n{% endfor %}\nend\n",
    "whitespace control": "{{- bos_token -}}  {%- for m in messages -%} {{ m['content'] }} "
    "{%- endfor %}",
    "tojson": "{{ messages | tojson(indent=2) }}",
    "loop variables": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}"
    "{% if not loop.last %},{% endif %}{% endfor %}",
    "loop control": "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    "{% endfor %}",
    "namespace and macro": "{% set ns = namespace(n=0) %}"
    "{% macro say(m) %}[{{ m.role }}]{% endmacro %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ say(m) }}{% endfor %}{{ ns.n }}",
    "generation tag": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
    "filters": "{% for m in messages if m.role != 'system' %}{{ m.content | trim | upper }}"
    "{{ '-' * 5 }}{% else %}none{% endfor %}{{ tools is none }}",
    "recursive loop": "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}"
    "({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
}


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
    started = time.monotonic()
    with pytest.raises(InvalidRequest, match="takes too long"):
        template.render(CHAT)
    assert time.monotonic() - started < 10


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


def test_a_chat_without_messages_is_refused() -> None:
    """Templates would index into nothing."""
    with pytest.raises(InvalidRequest, match="no messages"):
        ChatTemplate("x", {}).render([])


@pytest.mark.parametrize("source", ["{% for %}", "{{", "x" * (1 << 20) + "x"])
def test_a_broken_template_stops_the_start(source: str) -> None:
    """Better than a failure at the first chat."""
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(source, {})
