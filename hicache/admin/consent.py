"""Changes are counted first and made when somebody has agreed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import typer

from hicache.admin import flags
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE, fail
from hicache.admin.output import print_values
from hicache.admin.units import size_text


class Amount(Protocol):
    """What replies to changes have in common."""

    @property
    def num_pages(self) -> int:
        """Pages concerned."""
        ...

    @property
    def num_bytes(self) -> int:
        """Their bytes, values only."""
        ...


_Reply = TypeVar("_Reply", bound=Amount)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """What the user said about a change before it."""

    dry_run: flags.DryRun = False
    yes: flags.Yes = False

    def check(self) -> None:
        """End with wrong usage when nobody can be asked, or when two flags contradict."""
        if self.yes and self.dry_run:
            fail("give either --yes, which changes the cache, or --dry-run", EXIT_USAGE)
        if not (self.yes or self.dry_run or has_terminal()):
            fail("there is no terminal to ask on: give --yes or --dry-run", EXIT_USAGE)

    def changed(self, change: Callable[[bool], _Reply], question: str) -> _Reply:
        """Make a change that takes whether it only counts, and return its reply.

        Without --yes what a dry run counts is shown, and the question asked; a change of nothing
        is not asked about. Ends the command when the answer is no.
        """
        self.check()
        if not self.yes:
            counted = change(True)
            if self.dry_run or counted.num_pages == 0:
                return counted
            self.ask(f"{question} {amount_text(counted)}?")
        return change(False)

    def ask(self, question: str) -> None:
        """Go on when the answer is yes; --yes answers."""
        if self.yes:
            return
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            fail("nothing was changed", EXIT_ERROR)

    def ask_unless_dry(self, question: str) -> None:
        """Go on when the answer is yes, or when nothing is to be changed."""
        if not self.dry_run:
            self.ask(question)


def has_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def amount_text(amount: Amount) -> str:
    """Return how much a change concerns."""
    plural = "" if amount.num_pages == 1 else "s"
    return f"{amount.num_pages} page{plural} ({size_text(amount.num_bytes)})"


def print_change(values: Mapping[str, object], *, as_json: bool, found: bool | None = None) -> None:
    """Print what was (or would be) changed; ends with status 3 if nothing was found.

    Unless told otherwise, something was found when num_pages is not 0.
    """
    print_values(values, as_json=as_json)
    if not (values["num_pages"] if found is None else found):
        raise typer.Exit(EXIT_NOT_FOUND)
