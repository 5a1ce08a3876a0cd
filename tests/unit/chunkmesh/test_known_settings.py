"""The list of known names must be the settings that services really have."""

import importlib
import re
from pathlib import Path

import pytest

from chunkmesh.known_settings import (
    API_KEY_VARIABLE,
    COMMON_NAMES,
    MODULES,
    SERVICE_NAMES,
    VARIABLES,
    variable_of,
)
from chunkmesh.settings import Settings


def test_common_names() -> None:
    """Every service has exactly these."""
    assert frozenset(Settings.model_fields) == COMMON_NAMES


@pytest.mark.parametrize("service", SERVICE_NAMES)
def test_names_of_a_service(service: str) -> None:
    """A forgotten name would make every other service refuse the shared environment."""
    module = f"{MODULES[service]}.settings"
    importlib.import_module(module)
    names = {
        name
        for settings in Settings.__subclasses__()
        if settings.__module__ == module
        for name in settings.model_fields
    }
    assert names - COMMON_NAMES == SERVICE_NAMES[service]


def test_variables_of_the_command_lines() -> None:
    """Services share their environment with the commands, which read variables of their own."""
    root = Path(__file__).parents[3]
    folders = (root / "chunkmesh" / "cli", root / "hicache" / "admin")
    sources = [source for folder in folders for source in folder.glob("*.py")]
    read = {
        name
        for source in sources
        for name in re.findall(r"envvar=\"(CHUNKMESH_\w+)\"", source.read_text())
    }
    shared = {variable_of(name) for name in COMMON_NAMES}
    assert read - shared | {"CHUNKMESH_CONFIG", API_KEY_VARIABLE} == VARIABLES
