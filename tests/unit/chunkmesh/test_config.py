"""Settings: which source wins, what a user reads when a value or a name is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field, model_validator

from chunkmesh.address import HostPort
from chunkmesh.config import load
from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from chunkmesh.settings import Address, Layers, Port, Settings
from chunkmesh.settings_sources import _metavar


class _Sample(Settings):
    """Serves as a sample.

    Only the first paragraph is shown.
    """

    service: ClassVar[str] = "stage_worker"
    command: ClassVar[str] = "sample"
    flag_aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"page_size": ("--block-size",)}

    layers: Layers
    """Layers to serve, 100% of them."""
    page_size: Annotated[int, Field(ge=1, le=1024)] = 64
    """Tokens a page holds."""
    scheduler: tuple[Address, ...] = (HostPort(host="127.0.0.1", port=50052),)
    """Schedulers, in order of preference."""
    peer: Address | None = None
    """Next stage."""
    port: Port = 50061
    """Port."""
    redis_url: str | None = None
    """Store."""
    strategy: Literal["fixed", "dynamic"] = "fixed"
    """How to cut."""
    warm: bool = True
    """Warm up."""

    @model_validator(mode="after")
    def _no_odd_pages(self) -> "_Sample":
        if self.page_size % 2:
            raise ValueError(f"page_size {self.page_size} is odd")
        return self


_LAYERS = ("--layers", "0-3")


def _load(*argv: str, environ: Mapping[str, str] | None = None) -> _Sample:
    return load(_Sample, [*_LAYERS, *argv], environ or {}).settings


def _error(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(_Sample, argv, environ or {})
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """Return a path for a settings file."""
    return tmp_path / "chunkmesh.toml"


def test_defaults() -> None:
    """Nothing but the required layers has to be given."""
    settings = _load()
    assert LayerRange(first=0, last=4) == settings.layers
    assert (HostPort(host="127.0.0.1", port=50052),) == settings.scheduler


@pytest.mark.parametrize(
    ("in_file", "environ", "argv", "expected", "origin"),
    [
        ("", {}, (), 64, "default"),
        ("page_size = 2", {}, (), 2, "file {toml}"),
        ("page-size = 2", {"CHUNKMESH_PAGE_SIZE": "4"}, (), 4, "environment CHUNKMESH_PAGE_SIZE"),
        (
            "page_size = 2",
            {"CHUNKMESH_PAGE_SIZE": "4"},
            ("--page-size", "6"),
            6,
            "flag --page-size",
        ),
        ("", {}, ("--block-size=8",), 8, "flag --page-size"),
        ("", {"CHUNKMESH_PAGE_SIZE": ""}, (), 64, "default"),
        ("page_size = 2\n[stage-worker]\npage_size = 10", {}, (), 10, "file {toml}"),
    ],
)
def test_the_later_source_wins(
    toml: Path,
    in_file: str,
    environ: dict[str, str],
    argv: tuple[str, ...],
    expected: int,
    origin: str,
) -> None:
    """Defaults < file < environment < flags, and the origin is remembered."""
    toml.write_text(in_file)
    loaded = load(_Sample, [*_LAYERS, *argv, "--config", str(toml)], environ)
    assert expected == loaded.settings.page_size
    assert origin.format(toml=toml) == loaded.origins["page_size"]


def test_the_file_may_be_named_by_the_environment(toml: Path) -> None:
    """Containers are configured without flags."""
    toml.write_text('layers = "2:4"')
    loaded = load(_Sample, [], {"CHUNKMESH_CONFIG": str(toml)})
    assert LayerRange(first=2, last=4) == loaded.settings.layers


@pytest.mark.parametrize(
    "argv",
    [
        ("--scheduler", "a:1,[::1]:2"),
        ("--scheduler", "a:1", "--scheduler", "[::1]:2"),
    ],
)
def test_a_list_may_be_repeated_or_separated(argv: tuple[str, ...]) -> None:
    """Both habits work, IPv6 included."""
    expected = (HostPort(host="a", port=1), HostPort(host="::1", port=2))
    assert expected == _load(*argv).scheduler


def test_a_list_in_the_environment_and_in_the_file(toml: Path) -> None:
    """The other sources read lists alike."""
    expected = (HostPort(host="a", port=1), HostPort(host="b", port=2))
    assert expected == _load(environ={"CHUNKMESH_SCHEDULER": "a:1, b:2"}).scheduler
    toml.write_text('scheduler = ["a:1", "b:2"]')
    assert expected == _load("--config", str(toml)).scheduler


def test_booleans_have_a_negative_flag() -> None:
    """A default of true can be turned off."""
    assert not _load("--no-warm").warm
    assert not _load(environ={"CHUNKMESH_WARM": "false"}).warm


def test_a_bad_value_names_flag_value_and_limit() -> None:
    """One line is enough to mend it."""
    expected = "--page-size 2000 (flag --page-size): should be less than or equal to 1024"
    assert expected == _error(*_LAYERS, "--page-size", "2000")


def test_a_bad_value_names_its_variable() -> None:
    """A value from the environment is found there, not on the command line."""
    text = _error(environ={"CHUNKMESH_LAYERS": "9-1"})
    expected = (
        "--layers 9-1 (environment CHUNKMESH_LAYERS): "
        "'9-1' holds no layer: the first comes after the last"
    )
    assert expected == text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--page-size", "x"), "--page-size x (flag --page-size): should be a valid integer"),
        (("--strategy", "z"), "--strategy z (flag --strategy): should be 'fixed' or 'dynamic'"),
        (("--scheduler", "a:1,b"), "--scheduler b (flag --scheduler): 'b' is not HOST:PORT"),
        (("--page-size", "7"), "page_size 7 is odd"),
        (("--page-size",), "argument --page-size/--block-size: expected one argument"),
        (("--page-sise", "7"), "--page-sise: no such flag; did you mean --page-size?"),
        (("--page", "7"), "--page: no such flag"),
        (("stray",), "stray: no such flag"),
    ],
)
def test_errors_on_the_command_line(argv: tuple[str, ...], expected: str) -> None:
    """Every mistake is named in one line."""
    text = _error(*_LAYERS, *argv)
    assert text.startswith(expected)
    assert "\n" not in text


def test_a_missing_value_names_all_ways_to_give_it() -> None:
    """A newcomer learns the three sources from the first error."""
    expected = "--layers is required (or CHUNKMESH_LAYERS, or layers in a config file)"
    assert expected == _error()


def test_an_unknown_variable_is_an_error() -> None:
    """A typo in the environment must not pass silently."""
    text = _error(*_LAYERS, environ={"CHUNKMESH_PAGE_SISE": "1"})
    assert text == "CHUNKMESH_PAGE_SISE: no such variable; did you mean CHUNKMESH_PAGE_SIZE?"


def test_foreign_variables_are_ignored() -> None:
    """Only our prefix is ours."""
    assert _load(environ={"PAGE_SIZE": "1", "CHUNK": "2"}).page_size == 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("page_sise = 1", "page_sise: no such key; did you mean page_size?"),
        ("[stage_worker]\npage_sise = 1", "page_sise: no such key; did you mean page_size?"),
        ("[worker]\npage_size = 1", "worker: no such table"),
        ("page_size = 2\npage-size = 2", "page_size is given twice"),
        ("page_size = ", "Invalid value (at end of document)"),
    ],
)
def test_errors_in_the_file(toml: Path, text: str, expected: str) -> None:
    """The error names the file and the key."""
    toml.write_text(text)
    error = _error(*_LAYERS, "--config", str(toml))
    assert error.startswith(f"--config {toml}: {expected}")


def test_a_missing_file_is_an_error(toml: Path) -> None:
    """A file that was asked for must exist."""
    expected = f"--config {toml}: No such file or directory"
    assert expected == _error(*_LAYERS, "--config", str(toml))


def test_print_config_shows_every_value_and_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    """Who wonders where a value comes from can ask."""
    with pytest.raises(SystemExit) as caught:
        load(_Sample, [*_LAYERS, "--print-config"], {"CHUNKMESH_PAGE_SIZE": "4"})
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert caught.value.code == 0
    assert len(_Sample.model_fields) == len(lines)
    assert ["--page-size", "4", "environment CHUNKMESH_PAGE_SIZE"] in lines
    assert ["--layers", "0-3", "flag --layers"] in lines
    assert ["--scheduler", "127.0.0.1:50052", "default"] in lines


def test_passwords_are_not_shown() -> None:
    """Settings are printed and logged; a password in a URL is not."""
    loaded = load(_Sample, [*_LAYERS, "--redis-url", "redis://u:s3cret@h:1/0"], {})
    assert loaded.values()["redis_url"] == "redis://u:***@h:1/0"


@pytest.mark.parametrize(
    ("argv", "environ", "flags"),
    [
        (["--redis-url", "redis://u:s3cret@h:1/0"], {}, ("--redis-url",)),
        (["--redis-url", "redis://h:1/0"], {}, ()),
        ([], {"CHUNKMESH_REDIS_URL": "redis://u:s3cret@h:1/0"}, ()),
    ],
)
def test_passwords_of_command_lines_are_found(
    argv: list[str], environ: dict[str, str], flags: tuple[str, ...]
) -> None:
    """Everybody on the machine reads those, and nobody but the owner the environment."""
    assert flags == load(_Sample, [*_LAYERS, *argv], environ).open_passwords()


def test_help_tells_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    """The docstring under a field is its help, with its default."""
    with pytest.raises(SystemExit) as caught:
        load(_Sample, ["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    assert "Serves as a sample." in text
    assert "--layers LAYERS Layers to serve, 100% of them. (required)" in text
    assert "--page-size N, --block-size N Tokens a page holds. (default: 64)" in text
    assert "Only the first paragraph" not in text


@pytest.mark.parametrize(
    ("name", "kind", "shown"),
    [
        ("max_queued_tokens_per_user", int, "N"),
        ("http_port", int, "PORT"),
        ("latency_model", Path, "FILE"),
        ("profile_dir", Path, "DIR"),
        ("peer", Address, "HOST:PORT"),
        ("server", tuple[Address, ...], "HOST:PORT,..."),
        ("redis_url", tuple[str, ...], "URL,..."),
    ],
)
def test_help_says_what_kind_of_value_a_flag_takes(name: str, kind: object, shown: str) -> None:
    """The last word of a flag's name alone would ask for a USER where a number is meant."""
    assert shown == _metavar(name, kind)


def test_a_port_that_was_not_given_may_move() -> None:
    """Only a chosen port in use is an error."""
    assert not _load().listen("port").explicit
    assert _load("--port", "50061").listen("port").explicit
    assert _load(environ={"CHUNKMESH_PORT": "1"}).listen("port").explicit
