"""Log lines that nobody can forge: whatever a client sends, a record stays one line, and a traceback is indented."""

from __future__ import annotations

import logging
import re
from typing import Any

from server.json_logs import JSONFormatter

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OneLineFormatter(logging.Formatter):
    """Escapes control characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See `logging.Formatter`."""
        return _escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        message, *traceback = super().format(record).split("\n")
        return "\n".join([message, *(f"    {_escaped(line)}" for line in traceback)])


class NoProbes(logging.Filter):
    """Drops the access lines of health checks and scrapes that went well: they come every few seconds, for ever."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`; an access record's arguments are client, method, path, HTTP version and status."""
        match record.args:
            case (_, _, str(path), _, int(status)):
                return status >= 400 or path.split("?")[0] not in ("/health", "/ready", "/metrics", "/ping")
        return True


def log_config(level: str, style: str = "text") -> dict[str, Any]:
    """For `logging.config.dictConfig`: everything to stderr, `level` as uvicorn names it, `style` "text" or "json"."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {
                "()": f"{__name__}.{OneLineFormatter.__name__}",
                "format": "%(asctime)s %(levelname)s %(name)s: %(message)s",
            },
            "json": {"()": f"{JSONFormatter.__module__}.{JSONFormatter.__name__}"},
        },
        "filters": {"no_probes": {"()": f"{__name__}.{NoProbes.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": style}},
        "loggers": {"uvicorn.access": {"filters": ["no_probes"]}},
        "root": {"handlers": ["stderr"], "level": "DEBUG" if level == "trace" else level.upper()},
    }


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
