"""What `chunkmesh up` knows of the services' settings, held against the settings themselves."""

from __future__ import annotations

import importlib.util

import pytest
import typer

from chunkmesh.cli import up, up_flags
from chunkmesh.cli.mesh_options import GatewayOptions
from chunkmesh.cli.scheduler_words import check_own_words, check_scheduler_words, named_mesh
from chunkmesh.errors import ConfigError
from chunkmesh.known_settings import flag_of
from scheduler.settings import SchedulerSettings
from stage_worker.settings import WorkerSettings


def _own_flags() -> set[str]:
    command = typer.main.get_command(up.app)
    return {flag for parameter in command.params for flag in parameter.opts}


def test_pages_are_as_large_as_the_scheduler_makes_them() -> None:
    """A KV pool is measured against them before anything starts."""
    assert SchedulerSettings.model_fields["page_size"].default == up.DEFAULT_PAGE_TOKENS


def _complaint(flag: str) -> str:
    try:
        check_scheduler_words([flag, "1"])
    except ConfigError as error:
        return str(error)
    return ""


def test_every_flag_of_the_scheduler_is_taken_or_refused_by_name() -> None:
    """Those that `up` sets would otherwise be given twice, and one of both be dropped."""
    aliases = {flag for flags in SchedulerSettings.flag_aliases.values() for flag in flags}
    flags = {*map(flag_of, SchedulerSettings.model_fields), *aliases}
    complaints = {flag: text for flag in flags if (text := _complaint(flag))}
    assert all("before --" in text for text in complaints.values())
    assert complaints.keys() == aliases | {
        *("--model-path", "--host", "--port", "--internal-port", "--http-port"),
        *("--hicache-url", "--page-size", "--chunked-prefill-size"),
    }


@pytest.mark.parametrize("words", [["--no-enable-dynamic-chunking"], ["--config", "mesh.toml"]])
def test_flags_of_other_forms_reach_the_scheduler(words: list[str]) -> None:
    """Every flag that its help shows."""
    assert check_scheduler_words(words) == tuple(words)


def test_flags_of_workers_are_told_apart_from_those_of_up() -> None:
    """What `up` has no flag for can be set for all workers by the environment."""
    for name in WorkerSettings.model_fields:
        if name.startswith(("profile", "load_")):
            with pytest.raises(ConfigError, match=f"set CHUNKMESH_{name.upper()}"):
                check_own_words([flag_of(name)], _own_flags())
    check_own_words(["--dtype", "--max-total-tokens", "--bogus"], _own_flags())


def test_a_port_of_no_gateway_is_an_error() -> None:
    """It would be without effect."""
    with pytest.raises(ConfigError, match="--gateway-port needs --gateway"):
        up_flags.GatewayFlags(gateway_port=8000).options()


def test_a_gateway_without_fastapi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end at once, and take the mesh with it after a minute of loading."""
    wanted = up_flags.GatewayFlags(gateway=True, gateway_port=8000)
    assert wanted.options() == GatewayOptions(port=8000)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'chunkmesh\[gateway\]'"):
        wanted.options()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), None),
        (("--load-policy", "always"), None),
        (("--mesh-name", "a", "--load-policy", "always"), "a"),
        (("--mesh-name=a", "--mesh-name", "b"), "b"),
        (("--mesh-name",), ""),
    ],
)
def test_a_name_given_to_the_scheduler_is_the_mesh_s(
    words: tuple[str, ...], name: str | None
) -> None:
    """Two schedulers on other machines may then stand by for the same mesh."""
    assert name == named_mesh(words)
