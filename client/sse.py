"""Server-sent events, from bytes to the data of each event."""

from __future__ import annotations


class EventDecoder:
    """Collects bytes as they come and gives the data of every event that they complete.

    Works on bytes up to the line, so an event may be split anywhere, even inside a character. Comments and the
    fields `event`, `id` and `retry` are skipped.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Returns the data of the events that `chunk` completes, oldest first."""
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        events = []
        for line in lines:
            event = self._take(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        return events

    def close(self) -> list[str]:
        """The stream has ended: an event that lacks only its closing blank line still counts."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> str | None:
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data).decode("utf-8", errors="replace")
        self._data.clear()
        return event
