"""The filters, tests, functions and methods of chat templates, each with bounds.

What is not listed does not exist: jinja2 and Python have many more, and some of them make gigabytes
or hours of a few characters. What is listed takes time and memory in proportion to its operands,
or is checked here before it is called.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.filters
import jinja2.runtime
import jinja2.tests
import jinja2.utils

from scheduler.template_budget import ITEM_WEIGHT, current, within

_FILTERS = frozenset(
    (
        *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first"),
        *("float", "format", "groupby", "indent", "int", "items", "join", "last", "length"),
        *("list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
        *("round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "trim"),
        *("unique", "upper"),
    )
)
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        (
            *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum"),
            *("isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
            *("istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
            *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip"),
            *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
        )
    ),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index", "grouper", "list"}),
    **dict.fromkeys((int, float, range, set, type, bytes), frozenset()),
}
"""Of values of these types no other attributes are seen."""

_BACKWARD = frozenset({"strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition", "rsplit"})
"""Methods whose time grows with the product of text and argument."""
_MAX_ARGUMENT = 64
_MAX_SORTED = 4096
"""Items of what compares them with each other; numbers may be chosen to have one hash."""
_MAX_RANGE = 1 << 20
_MAX_DIGITS = 4096
_SPEC = re.compile(r"%(?:%|(?:\(\w*\))?[-+ #0]?\d{0,2}(?:\.\d{1,2})?[dfgirsx])")
"""What may stand in a format: widths up to 99."""
_SPEC_WEIGHT = 400
"""Of one number with its width; the largest float has 309 digits."""


def filters() -> dict[str, Callable[..., Any]]:
    """Return the filters by name; those in brackets are for the compiled tree only."""
    known: dict[str, Callable[..., Any]] = dict(jinja2.filters.FILTERS)
    inner: dict[str, Callable[..., Any]] = {
        "tojson": _to_json,
        "<made>": lambda value: current.get().made(value),
        "<seen>": _seen,
        "<printed>": _printed,
        "<concatenated>": _concatenated,
        "<each>": lambda items: current.get().items(items),
    }
    return {name: _filter(name, known[name]) for name in _FILTERS} | inner


def tests() -> dict[str, Callable[..., Any]]:
    """Return all tests of jinja2, with a deadline."""
    known: dict[str, Any] = dict(jinja2.tests.TESTS)
    return {name: _test(function) for name, function in known.items()}


def functions() -> dict[str, Callable[..., Any]]:
    """Return what templates can call by name, but for the clock."""
    return {
        "range": _range,
        "dict": _dict,
        "namespace": jinja2.utils.Namespace,
        "raise_exception": _raise_exception,
    }


def method_args(method: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ANN401
    """Check the arguments of a text's method; return what to call it with."""
    text = getattr(method, "__self__", None)
    if not isinstance(text, str) or not args:
        return args
    match method.__name__:
        case "join":
            return (_joinable(args[0], text), *args[1:])
        case "replace":
            _check_replace(text, *args)
        case name if name in _BACKWARD:
            _check_short(args[0])
    return args


def check_format(form: str, values: object) -> None:
    """Refuse a format that makes more of its values than they are; each may be used by each %."""
    if "%" in _SPEC.sub("", form):
        raise jinja2.TemplateRuntimeError("a format is none of %s, %d, %.2f, %(name)s and the like")
    weight = current.get().weight(values) + _SPEC_WEIGHT
    within("a formatted text", len(form) + form.count("%") * weight)


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    check = _CHECKS.get(name)
    num_hidden = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        budget = current.get()
        hidden, given = args[:num_hidden], args[num_hidden:]
        budget.check_time()
        for value in (*given, *kwargs.values()):
            budget.weight(value)
        if check is not None:
            given = (check(*given, **kwargs), *given[1:])
        return budget.made(function(*hidden, *given, **kwargs))

    return bounded


def _test(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        current.get().check_time()
        return function(*args, **kwargs)

    return bounded


def _seen(value: Any) -> Any:  # noqa: ANN401
    """Pass an operand on."""
    current.get().check_time()
    return value


def _printed(value: Any) -> str:  # noqa: ANN401
    """Turn what is printed into text."""
    budget = current.get()
    if not isinstance(value, str):
        budget.weight(value)
        value = str(value)
    text: str = budget.made(value)
    return text


@jinja2.pass_eval_context
def _concatenated(context: jinja2.nodes.EvalContext, values: list[Any]) -> str:
    """Do what `~` does."""
    budget = current.get()
    budget.weight(values)
    join = jinja2.runtime.markup_join if context.autoescape else jinja2.runtime.str_join
    text: str = budget.made(join(values))
    return text


def _joinable(value: Any, separator: object = "", attribute: object = None) -> Any:  # noqa: ANN401, ARG001
    items = list(value)
    within("a joined text", current.get().weight(items) + len(items) * len(str(separator)))
    return items


def _check_replace(text: Any, old: object, new: object, count: object = None) -> Any:  # noqa: ANN401, ARG001
    num_places = str(text).count(str(old))
    within("a text with replacements", len(str(text)) + num_places * len(str(new)))
    return text


def _check_indent(text: Any, width: int | str = 4, *_: object, **__: object) -> Any:  # noqa: ANN401
    num_added = len(width) if isinstance(width, str) else width
    within("an indented text", (1 + len(str(text).splitlines())) * num_added)
    return text


def _check_short(argument: object) -> None:
    if isinstance(argument, str) and len(argument) > _MAX_ARGUMENT:
        raise jinja2.TemplateRuntimeError(f"an argument is longer than {_MAX_ARGUMENT}")


def _check_trim(value: Any, chars: object = None) -> Any:  # noqa: ANN401
    _check_short(chars)
    return value


def _check_sorted(value: Any, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
    for argument in (*args, *kwargs.values()):
        _check_short(argument)
    items = value if isinstance(value, dict) else list(value)
    if len(items) > _MAX_SORTED:
        raise jinja2.TemplateRuntimeError(f"more than {_MAX_SORTED} items are to be sorted")
    return items


def _check_list(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        within("a list", ITEM_WEIGHT * len(value))
    return value


def _check_number(value: Any, *_: object, **__: object) -> Any:  # noqa: ANN401
    if isinstance(value, str) and len(value) > _MAX_DIGITS:
        raise jinja2.TemplateRuntimeError(f"a number has more than {_MAX_DIGITS} digits")
    return value


def _check_round(value: Any, precision: int = 0, *_: object, **__: object) -> Any:  # noqa: ANN401
    if abs(precision) > _MAX_ARGUMENT:
        raise jinja2.TemplateRuntimeError(f"precision is beyond {_MAX_ARGUMENT}")
    return value


def _check_sum(value: Any, attribute: object = None, start: object = 0) -> Any:  # noqa: ANN401, ARG001
    if not isinstance(start, int | float):
        raise jinja2.TemplateRuntimeError("sum must start with a number")
    return value


def _check_format_filter(form: Any, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
    check_format(str(form), kwargs or args)
    return form


_CHECKS: Mapping[str, Callable[..., Any]] = {
    "join": _joinable,
    "replace": _check_replace,
    "indent": _check_indent,
    "trim": _check_trim,
    **dict.fromkeys(("sort", "dictsort", "unique", "groupby"), _check_sorted),
    "list": _check_list,
    **dict.fromkeys(("int", "float"), _check_number),
    "round": _check_round,
    "sum": _check_sum,
    "format": _check_format_filter,
}


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > _MAX_RANGE:
        raise jinja2.TemplateRuntimeError(f"range is longer than {_MAX_RANGE}")
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:  # noqa: ANN401
    return dict(*map(_check_sorted, args), **kwargs)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,  # noqa: ANN401 -- templates pass anything
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace jinja2's filter, which escapes for HTML."""
    budget = current.get()
    budget.weight(value)
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_ARGUMENT:
        raise jinja2.TemplateRuntimeError(f"indent is larger than {_MAX_ARGUMENT}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces, num_chars = [], 0
    for piece in encoder.iterencode(value):
        budget.check_time()
        num_chars = within("JSON", num_chars + len(piece))
        pieces.append(piece)
    text: str = budget.made("".join(pieces))
    return text
