"""`--log-format json`: one JSON object a line, for collectors that would have to guess otherwise."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from server.request_id import REQUEST_ID


class JSONFormatter(logging.Formatter):
    """`timestamp`, `level`, `logger`, `message`; `request_id` within a request; `exception` where there is a traceback.

    Lines about requests also have `client`, `method`, `path` and `status`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := REQUEST_ID.get()) is not None:
            fields["request_id"] = request_id
        match record.args:
            case (client, str(method), str(path), _, int(status)) if record.name == "uvicorn.access":
                fields |= {"client": client, "method": method, "path": path, "status": status}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)  # in ASCII, so that no reader finds another line end
