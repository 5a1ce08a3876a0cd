"""Stands in for scheduler."""

from tests.integration.fake_services.fake_service import run

run("scheduler")
