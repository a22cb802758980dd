"""What a proxy measures is measured after the bytes have gone on, and yet soon, in order and in little memory."""

from __future__ import annotations

import pytest

from exporter.proxy import watching
from exporter.proxy.http1 import Request
from exporter.proxy.watching import Ending, Notes, Watcher
from tests.proxying import until

REQUEST = Request(b"POST /api/generate HTTP/1.1", (), b"POST", b"/api/generate", 0)


class Listener:
    """Watches all exchanges and keeps what it hears, one text a piece."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def watch(self, request: Request, at: float) -> Watcher:
        return self

    def uploaded(self, content: object) -> None:
        self.heard.append(f"uploaded {content!r}")

    def asked(self, at: float) -> None:
        self.heard.append(f"asked {at:g}")

    def answered(self, response: object) -> None:
        self.heard.append("answered")

    def received(self, at: float, content: object) -> None:
        self.heard.append(f"received {content!r}")

    def ended(self, at: float, ending: Ending) -> None:
        self.heard.append(f"ended {ending.name}")

    def dropped(self) -> None:
        self.heard.append("dropped")


async def test_events_are_heard_later_by_themselves_and_in_order() -> None:
    listener = Listener()
    guard = Notes(listener.watch).open(REQUEST, 0.0)
    guard.tell(0, Watcher.asked, 1.0)
    guard.tell(3, Watcher.received, 2.0, [b"abc"])
    guard.tell(0, Watcher.ended, 3.0, Ending.COMPLETE)
    assert listener.heard == []
    await until(lambda: len(listener.heard) == 3)
    assert listener.heard == ["asked 1", "received [b'abc']", "ended COMPLETE"]


async def test_hearing_goes_on_in_turns_until_all_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "TURN", 0.0)  # One a turn.
    listener = Listener()
    notes = Notes(listener.watch)
    guard = notes.open(REQUEST, 0.0)
    for at in range(5):
        guard.tell(0, Watcher.asked, float(at))
    await until(lambda: len(listener.heard) == 5)
    guard.tell(0, Watcher.asked, 9.0)  # After a pause it begins again.
    await until(lambda: len(listener.heard) == 6)


async def test_who_asks_for_the_figures_gets_all_that_was_told() -> None:
    listener = Listener()
    notes = Notes(listener.watch)
    notes.open(REQUEST, 0.0).tell(0, Watcher.asked, 1.0)
    notes.hear()
    assert listener.heard == ["asked 1"]


async def test_what_waits_to_be_heard_takes_little_memory() -> None:
    listener = Listener()
    guard = Notes(listener.watch).open(REQUEST, 0.0)
    for _ in range(100):
        guard.tell(2**16, Watcher.uploaded, [b"part"])
    assert len(listener.heard) >= 100 - watching.MOST // 2**16
    for _ in range(100_000):
        guard.tell(0, Watcher.asked, 1.0)
    assert len(listener.heard) >= 100_100 - watching.MOST // watching.NOTE
