"""What really happened to each request, in simulated seconds: what tests compare measurements with."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, eq=False)
class Record:
    """One request's life; times are the clock's simulated seconds, None for what has not happened.

    `scheduled` is when it was first admitted to the batch; `token_times` has one entry a token, equal for
    tokens that one step brought; `updates` are the times of those steps.  The step under way is in it already.
    """

    id: int
    arrival: float
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int = 0
    scheduled: float | None = None
    token_times: array[float] = field(default_factory=lambda: array("d"))
    updates: array[float] = field(default_factory=lambda: array("d"))
    finished: float | None = None
    reason: FinishReason | None = None
    preemptions: int = 0

    @property
    def output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_times)

    @property
    def first_token(self) -> float | None:
        """When the first token was there."""
        return self.token_times[0] if self.token_times else None

    @property
    def ttft(self) -> float:
        """Seconds from arrival to first token; ValueError if there was none."""
        return self._need(self.first_token, "first token") - self.arrival

    @property
    def queue(self) -> float:
        """Seconds from arrival to first admission."""
        return self._need(self.scheduled, "admission") - self.arrival

    @property
    def prefill(self) -> float:
        """Seconds from first admission to first token, a preemption between them included."""
        return self._need(self.first_token, "first token") - self._need(self.scheduled, "admission")

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        self._need(self.first_token, "first token")
        return self.token_times[-1] - self.token_times[0]

    @property
    def e2e(self) -> float:
        """Seconds from arrival to the end."""
        return self._need(self.finished, "end") - self.arrival

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies as vLLM counts them: one for each engine step after the first token."""
        return [later - earlier for earlier, later in pairwise(self.updates)]

    @property
    def tpot(self) -> float:
        """Time per output token, decode / (tokens - 1); 0 for up to one token, as vLLM reports it."""
        return self.decode / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    def _need(self, at: float | None, what: str) -> float:
        if at is None:
            raise ValueError(f"request {self.id} has had no {what}")
        return at


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request as a server received it; `body` is the parsed JSON, or None."""

    at: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: object


class Ledger:
    """The last `keep` requests of a server, in order of arrival, and what it was asked over HTTP."""

    def __init__(self, keep: int = 2000) -> None:
        self.records: deque[Record] = deque(maxlen=keep)
        self.asked: deque[Asked] = deque(maxlen=keep)

    @property
    def finished(self) -> list[Record]:
        """Records of requests that have ended, in order of arrival."""
        return [record for record in self.records if record.finished is not None]
