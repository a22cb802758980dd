"""Log lines for a person (text) or a machine (one JSON object a line)."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: ts (RFC 3339, UTC), level, logger, msg, and exc where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["exc"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(level: str, form: str) -> None:
    """Log to standard error from `level` up; other libraries only from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=max(logging.WARNING, _number(level)), handlers=[handler], force=True)
    logging.getLogger("exporter").setLevel(_number(level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
