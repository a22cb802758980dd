"""Keeps a loaded Ollama model's expiry what it would be without us, although every request of ours moves it.

What a request does to it (seen, see docs/measuring.md): when it ends, expiry = now + keep_alive, and a request
without keep_alive takes the one of the request before.  So a probe has to send one, lest it push the expiry by
the whole of it; and what a probe sends then shortens the stay that later requests of users buy.  Hence this
record of what would be without us, from which each probe's keep_alive and a repair after a user's request follow.
"""

from __future__ import annotations

import math

LOOK = 10.0
"""Seconds between two looks at an Ollama; a user's request is repaired not later than that."""

LEAST_LEFT = 2 * LOOK
"""Seconds a model must have left to be probed, so that what a probe leaves behind outlasts the next look."""

DEFAULT = 300.0
"""Seconds of OLLAMA_KEEP_ALIVE if nobody sets it."""

FOR_EVER = 100 * 365 * 86400.0
"""Seconds; Ollama shows keep_alive -1 as an expiry about 290 years from now."""

SLACK = 1.0
"""Seconds by which an expiry may differ and still be the one that was meant."""


class Expiry:
    """One model's stay in memory, as seconds of one clock (Unix time by the server).

    `watched`: whether the model was seen to come, so that its first expiry tells the keep_alive that users have;
    else Ollama's default is assumed where the expiry allows it.
    """

    def __init__(self, shown: float, now: float, watched: bool) -> None:
        self.due = _unending(shown, now)
        self._shown = shown
        self._seen = now
        self._usual = _keep_alive(self.due - now) if watched else max(DEFAULT, _keep_alive(self.due - now))
        self._ours: float | None = None
        self._before: float | None = None
        self._asked: float | None = None

    def see(self, shown: float, now: float) -> None:
        """Take in the expiry that the server shows; a change that is not ours is a user's."""
        since, self._seen = self._seen, now
        if self._asked is not None and self._ours is not None and _within(shown - self._ours, self._asked, now):
            self._shown, self._asked = shown, None
            return
        if abs(shown - self._shown) < SLACK / 10:
            return
        self._shown, self._asked = shown, None
        if self._ours is None:
            self._told(shown, now, certain=now - since <= LOOK + SLACK)
        elif _within(shown - self._ours, since, now):
            # A request that ended since the last look and did not name a keep_alive got ours.
            self.used(shown - self._ours)
        else:
            self._told(shown, now, certain=True)

    def used(self, at: float) -> None:
        """Take in that a user's request ended at `at`."""
        self.due = max(self.due, at + self._usual)

    def _told(self, shown: float, now: float, certain: bool) -> None:
        """Take over an expiry that is not our doing; if it was set since the last look, its keep_alive is `certain`."""
        self.due = _unending(shown, now)
        stay = _keep_alive(self.due - now)
        self._usual = stay if certain else max(self._usual, stay)

    def left(self, now: float) -> float:
        """Return the seconds until the model would be unloaded without us."""
        return self.due - now

    def ask(self, now: float, lasting: float) -> str | int:
        """Return the keep_alive of a request of ours that will end in about `lasting` seconds.

        It is never so short that the next look comes too late, nor below 0, which Ollama takes for ever.
        """
        self._before, self._ours, self._asked = self._ours, max(self.due - now - lasting, LOOK), now
        return -1 if math.isinf(self.due) else f"{self._ours:.3f}s"

    def ask_without(self, now: float) -> None:
        """Take in that a request of ours was sent that names no keep_alive, as OpenAI's dialects know none."""
        ours = self._usual if self._ours is None else self._ours
        self._before, self._ours, self._asked = self._ours, ours, now

    def refused(self) -> None:
        """Take in that the last request of ours never came to the model, which keeps what was left behind before."""
        self._ours, self._asked = self._before, None

    def wrong(self, now: float) -> bool:
        """Return whether the server's expiry is ours to repair; not if it is so near that a repair might load."""
        if self._ours is None or self._asked is not None or math.isinf(self.due):
            return False
        return abs(self._shown - self.due) > SLACK and min(self._shown, self.due) - now > LOOK / 2


def _within(moment: float, begin: float, end: float) -> bool:
    return begin - SLACK <= moment <= end + SLACK


def _unending(shown: float, now: float) -> float:
    return math.inf if shown - now > FOR_EVER else shown


def _keep_alive(left: float) -> float:
    """Return the keep_alive behind an expiry seen within one look: they are whole tens of seconds mostly."""
    return left if math.isinf(left) else math.ceil(left / LOOK - 0.01) * LOOK
