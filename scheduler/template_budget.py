"""What one rendering of a chat template may still use: time, and the size of what it makes.

Every value that a template handles is weighed: a text by its characters, a list or dict by its
items and all that hangs on them, shared parts as often as they are met. As no value weighs more
than MAX_WEIGHT, whatever takes time or memory in proportion to its operands is bounded, too.
"""

from __future__ import annotations

import contextvars
import itertools
import sys
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

import jinja2
from jinja2.utils import Namespace

MAX_WEIGHT = 1 << 24
MAX_MADE_BYTES = 1 << 30
"""Of everything made, whether it is still in use or not."""
ITEM_WEIGHT = 8
MAX_INT_BITS = 1 << 14
_MAX_ITEMS = MAX_WEIGHT // ITEM_WEIGHT
_CONTAINERS = (list, tuple, dict, set, KeysView, ValuesView, ItemsView)


class Budget:
    """Of one rendering."""

    def __init__(self, deadline_s: float) -> None:
        """Begin now."""
        self._ends_s = time.monotonic() + deadline_s
        self._left_bytes = MAX_MADE_BYTES
        self._weights: dict[int, tuple[object, int]] = {}
        """Of containers, by id; held here, so that no other gets the id. None ever changes."""

    def check_time(self) -> None:
        """Refuse to go on after the deadline."""
        if time.monotonic() > self._ends_s:
            raise jinja2.TemplateRuntimeError("it takes too long")

    def weight(self, value: object) -> int:
        """Return a value's weight, at most MAX_WEIGHT."""
        if isinstance(value, str | range):
            return within("a value", len(value))
        if isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise jinja2.TemplateRuntimeError(f"a number has more than {MAX_INT_BITS} bits")
            return 1
        if isinstance(value, Namespace):
            # It may change later, and then what holds it would be heavier than it was.
            raise jinja2.TemplateRuntimeError("a namespace is used as a value")
        return self._container(value) if isinstance(value, _CONTAINERS) else 1

    def check(self, *values: object) -> None:
        """Check the time and operands, which may be namespaces, too."""
        self.check_time()
        for value in values:
            if not isinstance(value, Namespace):
                self.weight(value)

    def made(self, value: Any) -> Any:  # noqa: ANN401 -- templates make anything
        """Take a new value into account and return it; iterators get a deadline."""
        self.check(value)
        if isinstance(value, Iterator):
            return self.items(value)
        if isinstance(value, (str, *_CONTAINERS)):
            self._left_bytes -= sys.getsizeof(value)
        if self._left_bytes < 0:
            raise jinja2.TemplateRuntimeError(f"all values take more than {MAX_MADE_BYTES} bytes")
        return value

    def items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass the items of a loop on."""
        for num_before, item in enumerate(items):
            self.check_time()
            if num_before >= _MAX_ITEMS:
                raise jinja2.TemplateRuntimeError(f"a loop has more than {_MAX_ITEMS} steps")
            yield item

    def _container(self, value: Any) -> int:  # noqa: ANN401 -- one of _CONTAINERS
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = within("a value", ITEM_WEIGHT * (1 + len(value)))
        pairs = value.items() if isinstance(value, dict) else None
        for item in value if pairs is None else itertools.chain.from_iterable(pairs):
            weight = within("a value", weight + self.weight(item))
        self._weights[id(value)] = (value, weight)
        return weight


def within(name: str, weight: float) -> int:
    """Return a weight that is allowed."""
    if weight > MAX_WEIGHT:
        raise jinja2.TemplateRuntimeError(f"{name} is longer than {MAX_WEIGHT}")
    return int(weight)


current: contextvars.ContextVar[Budget] = contextvars.ContextVar("chat_template_budget")
"""Of the rendering under way. While a template is compiled there is none, so that jinja2, which
computes constants then, leaves all that is bounded to the rendering."""
