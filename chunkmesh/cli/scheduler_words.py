"""Checks flags that `chunkmesh up` hands to the scheduler, before anything is started.

Only names are known here; values are checked by the scheduler itself. Pure.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Sequence

from chunkmesh.errors import ConfigError
from chunkmesh.known_settings import COMMON_NAMES, SERVICE_NAMES, flag_of, variable_of

_OWN = {
    "--model-path": "--model-path",
    "--model": "--model-path",
    "--host": "--host",
    "--port": "--port",
    "--internal-port": "--internal-port",
    "--http-port": "--http-port",
    "--hicache-url": "--hicache-port or --no-cache",
    "--page-size": "--page-size",
    "--block-size": "--page-size",
    "--chunked-prefill-size": "--chunked-prefill-size",
    "--max-num-batched-tokens": "--chunked-prefill-size",
}
"""The scheduler's flags that `up` sets -> its own that do the same."""
_ENDING = ("-h", "--help", "--version", "--print-config")
"""Flags after which the scheduler ends."""
_SCHEDULER_FLAGS = frozenset(
    {"--config", *map(flag_of, SERVICE_NAMES["scheduler"] | COMMON_NAMES)} - _OWN.keys()
)
_WORKER_FLAGS = {
    flag_of(name): variable_of(name)
    for name in ("load_format", "profile", "profile_dir", "profile_timeout", "profile_tokens")
}
"""The workers' flags that `up` does not set -> variables that reach the workers."""


def check_scheduler_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return what stands after --, if a scheduler can be started with it.

    Raises:
        ConfigError: a flag is unknown, ends the scheduler, or is set by `up` itself.
    """
    if words and not words[0].startswith("-"):
        raise ConfigError(f"{words[0]!r} is not expected here; scheduler flags go after --")
    for word in words:
        flag = word.partition("=")[0]
        if flag in _ENDING:
            raise ConfigError(f"{flag} after --: the scheduler would end; run chunkmesh-scheduler")
        if flag in _OWN:
            raise ConfigError(f"{flag} after --: up sets that itself, give {_OWN[flag]} before --")
        if flag.startswith("--") and flag.replace("--no-", "--", 1) not in _SCHEDULER_FLAGS:
            raise ConfigError(f"{flag} after --: the scheduler has no such flag{_hint(flag)}")
    return tuple(words)


def named_mesh(words: Sequence[str]) -> str | None:
    """Return the value of --mesh-name among words for the scheduler, the last if given twice."""
    name = None
    for word, following in itertools.pairwise([*words, ""]):
        flag, is_joined, value = word.partition("=")
        if flag == flag_of("mesh_name"):
            name = value if is_joined else following
    return name


def check_own_words(words: Sequence[str], own: Collection[str]) -> None:
    """Look for flags before -- that are meant for a service of the mesh; own are those of `up`.

    Raises:
        ConfigError: there is one; says how to give it.
    """
    for word in words:
        flag = word.partition("=")[0]
        if flag in own:
            continue
        if flag in _SCHEDULER_FLAGS:
            raise ConfigError(
                f"{flag} is a flag of the scheduler: give it after --, as in up ... -- {flag} ..."
            )
        if flag in _OWN:
            raise ConfigError(f"{flag}: up has {_OWN[flag]} for that")
        if flag in _WORKER_FLAGS:
            raise ConfigError(_of_worker(flag))


def _of_worker(flag: str) -> str:
    return f"{flag} is a flag of stage-worker: set {_WORKER_FLAGS[flag]}, which all workers read"


def _hint(flag: str) -> str:
    if flag in _WORKER_FLAGS:
        return f"; {_of_worker(flag)}"
    close = difflib.get_close_matches(flag, sorted(_SCHEDULER_FLAGS | _OWN.keys()), n=1)
    return f"; did you mean {close[0]}?" if close else ""
