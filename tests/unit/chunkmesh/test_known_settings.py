"""The list of known names must be the settings that services really have."""

import importlib
import importlib.util

import pytest

from chunkmesh.known_settings import COMMON_NAMES, SERVICE_NAMES
from chunkmesh.settings import Settings


def test_common_names() -> None:
    """Every service has exactly these."""
    assert frozenset(Settings.model_fields) == COMMON_NAMES


@pytest.mark.parametrize("service", SERVICE_NAMES)
def test_names_of_a_service(service: str) -> None:
    """A forgotten name would make every other service refuse the shared environment."""
    if importlib.util.find_spec(f"{service}.settings") is not None:
        importlib.import_module(f"{service}.settings")
    names = {
        name
        for settings in Settings.__subclasses__()
        if settings.__module__ == f"{service}.settings"
        for name in settings.model_fields
    }
    assert names - COMMON_NAMES == SERVICE_NAMES[service]
