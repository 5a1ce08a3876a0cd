"""What nobody uses any more, and is let go some items at a time. Pure.

To free a million objects takes a good part of a second, which others would have to wait for.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Container: TypeAlias = dict[Any, Any] | set[Any] | list[Any]


class Remains:
    """Owner of such containers, which nobody else knows."""

    def __init__(self) -> None:
        self._containers: list[Container] = []

    def __bool__(self) -> bool:
        return bool(self._containers)

    def add(self, *containers: Container) -> None:
        """Take containers over."""
        self._containers += [container for container in containers if container]

    def drop(self, num_items: int) -> None:
        """Let go of so many items, or of all that there are."""
        while self._containers:
            container = self._containers[-1]
            num_here = min(num_items, len(container))
            for _ in range(num_here):
                if isinstance(container, dict):
                    container.popitem()
                else:
                    container.pop()
            if container:
                return
            num_items -= num_here
            self._containers.pop()
