"""Entry point of chunkmesh-scheduler."""

from __future__ import annotations

from chunkmesh import service
from scheduler.serve import serve
from scheduler.settings import SchedulerSettings


def main() -> None:
    """Run a scheduler from the command line."""
    service.run(SchedulerSettings, serve)


if __name__ == "__main__":
    main()
