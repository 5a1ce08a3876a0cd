"""Stands in for scheduler."""

from fake_service import run

run("scheduler")
