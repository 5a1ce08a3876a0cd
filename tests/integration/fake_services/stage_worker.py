"""Stands in for stage_worker."""

from tests.integration.fake_services.fake_service import run

run("stage_worker")
