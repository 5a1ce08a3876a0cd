"""Chat templates: programs that come with a model."""

from __future__ import annotations

import functools
import random
import time

from chunkmesh.errors import ConfigError, InvalidRequest
from scheduler.chat_template import ChatTemplate
from scheduler.template_functions import METHODS, filters, functions, tests
from tests.chat_templates import CHAT, TEMPLATES
from tests.fuzz.mutation import Draw, mutated
from tests.fuzz.target import Target, refused

_DEADLINE_S = 0.2
_LONGEST_S = 4.0
"""A single step may take two seconds after the deadline, on a machine that is not busy."""
_MOST_CHARS = 1 << 16
_VALUES = (
    *(
        "messages",
        "messages[0]",
        "'x'",
        "1",
        "-1",
        "2.5",
        "none",
        "true",
        "range(99)",
        "namespace()",
    ),
    *("loop", "loop.index", "caller", "self", "varargs", "bos_token", "{'a': 1}", "[1, 'b']", "()"),
    *("'a' * 99999", "9 ** 99", "'%s'", "'%999d'", "1e308", "x", "dict(a=1)", "cycler", "''"),
)
_NAMES = tuple(
    sorted(
        {name for name in filters() if name.isidentifier()}
        | {name for names in METHODS.values() for name in names}
        | {*functions(), *tests(), "__class__", "__init__", "func_globals", "gi_frame", "mro"}
    )
)
_OPERATORS = ("+", "*", "**", "~", "%", "//", "/", "-", "==", "in", "<", "and", "if x else")
_FORMS = (
    "{{{{ {a} | {name} }}}}",
    "{{{{ {a} | {name}({b}) }}}}",
    "{{{{ {a}.{name}({b}) }}}}",
    "{{{{ {a}.{name} }}}}",
    "{{{{ {name}({a}, {b}) }}}}",
    "{{{{ {a} {operator} {b} }}}}",
    "{{{{ {a}[{b}:{a}] ~ {b} }}}}",
    "{{% for i in {a} %}}{{{{ i }}}}{{{{ {b} }}}}{{% endfor %}}",
    "{{% for i in {a} recursive %}}{{{{ loop([{b}]) }}}}{{% endfor %}}",
    "{{% set x %}}{{{{ {a} }}}}{{% endset %}}{{{{ x | {name} }}}}",
    "{{% macro f(n) %}}{{{{ f({a}) }}}}{{% endmacro %}}{{{{ f({b}) }}}}",
    "{{% set x = {a} %}}{{% for i in range(99) %}}{{% set x = x {operator} x %}}{{% endfor %}}",
    "{{% filter {name} %}}{{{{ {a} }}}}{{% endfilter %}}",
    "{{% if {a} is {name} %}}{{{{ {b} }}}}{{% endif %}}",
    "{{% call({a}) f() %}}{{{{ {b} }}}}{{% endcall %}}",
    "{{% include {a} %}}{{% import {a} as y %}}{{% extends {b} %}}",
)


def _check(data: bytes) -> bool:
    """Renders or is refused, in time; what comes of it is no longer than allowed."""
    source = data.decode(errors="replace")
    begun_s = time.monotonic()
    try:
        template = ChatTemplate(
            source, {"bos_token": "<s>"}, deadline_s=_DEADLINE_S, max_output_chars=_MOST_CHARS
        )
        text = template.render(CHAT)
    except (ConfigError, InvalidRequest) as error:
        return refused(error)
    finally:
        assert time.monotonic() - begun_s < _LONGEST_S
    assert len(text) <= _MOST_CHARS
    return True


def _expression(random_: random.Random) -> str:
    choose = functools.partial(random_.choice)
    value = choose(_VALUES)
    for _ in range(random_.randint(0, 2)):
        value = f"({value} {choose(_OPERATORS)} {choose(_VALUES)})".replace(
            "if x else", "if true else"
        )
    return value


def _templates() -> Draw:
    """Return what makes templates of known words, or changes bytes of sound ones."""
    by_bytes = mutated(
        *(each.encode() for each in TEMPLATES.values()),
        words=tuple(each.encode() for each in (*_NAMES, *_OPERATORS, *_VALUES, "{%", "%}", "{{")),
    )

    def draw(random_: random.Random) -> bytes:
        if random_.random() < 0.5:
            return by_bytes(random_)
        pieces = [
            random_.choice(_FORMS).format(
                a=_expression(random_),
                b=_expression(random_),
                name=random_.choice(_NAMES),
                operator=random_.choice(_OPERATORS[:-1]),
            )
            for _ in range(random_.randint(1, 3))
        ]
        return "".join(pieces).encode()

    return draw


TARGETS = (
    Target(
        name="chat template",
        seeds=tuple(each.encode() for each in TEMPLATES.values()),
        check=_check,
        values=_templates(),
        examples=300,
    ),
)
