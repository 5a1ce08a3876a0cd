"""Stands in for stage_worker."""

from fake_service import run

run("stage_worker")
