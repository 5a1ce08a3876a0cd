"""Takes the fields of a JSON object one by one; what nobody has taken is refused. Pure.

null counts as absent, as OpenAI's clients write it. Errors name the field and what it must be, and
show no value but numbers: a text may be a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chunkmesh.gateway.api_error import ApiError, invalid

MAX_UINT32 = (1 << 32) - 1


class Fields:
    """The fields of one object that are still to be taken."""

    def __init__(self, value: object, *, path: str = "") -> None:
        """Begin with all of them; path names the object, empty for the request itself.

        Raises:
            ApiError: it is no object.
        """
        if not isinstance(value, dict):
            what = path or "the request's body"
            raise invalid(f"{what} must be a JSON object", path or None, "invalid_type")
        self._path = path
        self._left: dict[str, Any] = {
            name: each for name, each in value.items() if each is not None
        }

    def path(self, name: str) -> str:
        """Return how errors name a field."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """Return a value of any type; None if it is absent."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise wrong_type(self.path(name), "a string")
        return value

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.path(name), "true or false")
        return value

    def whole(self, name: str, *, least: int = 0, most: int = MAX_UINT32) -> int | None:
        """Return a whole number within bounds."""
        value = self.take(name)
        return None if value is None else whole(value, self.path(name), least=least, most=most)

    def number(self, name: str) -> float | None:
        """Return a number, whose range is left to the mesh."""
        value = self.take(name)
        return None if value is None else number(value, self.path(name))

    def members(self, name: str) -> list[Any] | None:
        """Return a list of anything."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise wrong_type(self.path(name), "a list")
        return value

    def inner(self, name: str) -> Fields | None:
        """Return the fields of an object inside."""
        value = self.take(name)
        return None if value is None else Fields(value, path=self.path(name))

    def drop(self, names: Sequence[str]) -> None:
        """Leave fields out that change nothing."""
        for name in names:
            self._left.pop(name, None)

    def refuse(self, unsupported: Mapping[str, Sequence[object]]) -> None:
        """Refuse what is known and not supported, but for values that ask for nothing.

        Raises:
            ApiError: one asks for something.
        """
        for name, harmless in unsupported.items():
            value = self.take(name)
            if value is not None and not any(_is_same(value, each) for each in harmless):
                raise invalid(
                    f"{self.path(name)} is not supported here, leave it out",
                    self.path(name),
                    "unsupported_parameter",
                )

    def end(self) -> None:
        """Refuse what nobody has taken.

        Raises:
            ApiError: there is something; names it.
        """
        for name in self._left:
            path = self.path(name[:64])
            raise invalid(f"there is no field {path}", path, "unknown_parameter")


def wrong_type(path: str, what: str) -> ApiError:
    """Return the error of a value that is something else."""
    return invalid(f"{path} must be {what}", path, "invalid_type")


def whole(value: object, path: str, *, least: int = 0, most: int = MAX_UINT32) -> int:
    """Return a whole number within bounds.

    Raises:
        ApiError: it is none, or out of bounds.
    """
    if type(value) is not int:
        raise wrong_type(path, "a whole number")
    if not least <= value <= most:
        shown = value if -(1 << 64) < value < 1 << 64 else "out of range"
        raise invalid(f"{path} is {shown}, must be from {least} to {most}", path)
    return value


def number(value: object, path: str) -> float:
    """Return a number.

    Raises:
        ApiError: it is none.
    """
    if type(value) is float:
        return value
    if type(value) is int and abs(value) < 1 << 64:
        return float(value)
    raise wrong_type(path, "a number")


def _is_same(value: object, harmless: object) -> bool:
    """Return whether two JSON values are the same: true is not 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and isinstance(harmless, int | float) and not isinstance(harmless, bool):
        return value == harmless
    return type(value) is type(harmless) and value == harmless
