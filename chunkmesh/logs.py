"""Sets up logging: one JSON object a line on stderr, or coloured text for people.

Logs of libraries take the same way. Called once by chunkmesh.service; everybody else only asks
structlog for a logger.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]


def set_up(*, service: str, level: LogLevel, log_format: LogFormat) -> None:
    """Send all logs at or above level to stderr, each line naming the service."""

    def add_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
    ]
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, _number(level)), force=True)


def _number(level: LogLevel) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
