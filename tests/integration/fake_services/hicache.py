"""Stands in for hicache."""

from fake_service import run

run("hicache")
