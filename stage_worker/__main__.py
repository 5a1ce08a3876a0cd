"""Entry point of stage-worker."""

from __future__ import annotations

from chunkmesh import service
from stage_worker.serve import serve
from stage_worker.settings import WorkerSettings


def main() -> None:
    """Run a stage worker from the command line."""
    service.run(WorkerSettings, serve)


if __name__ == "__main__":
    main()
