"""Stands in for hicache."""

from tests.integration.fake_services.fake_service import run

run("hicache")
