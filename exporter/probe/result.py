"""From what was seen of one probe to its figures: TTFT, ITL, TPOT, phases and rates; pure arithmetic."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from exporter.probe.events import Done, Error, Event, Token, Usage

COLD_LOAD = 0.5
"""Seconds of load_duration from which a model was not in memory: warm it is about 1 ms, cold it is seconds."""

SHORTEST = 1e-3
"""Seconds; a rate from a shorter duration is noise (Ollama gives 1000 ns for the decode of one token)."""


PHASES = ("connect", "queue", "load", "prefill", "decode")
"""The parts of a probe's time, in their order."""


class Reason(enum.StrEnum):
    """Why a probe failed; the `reason` label of `vitals_probe_failures_total`."""

    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_TOKEN = "timeout_first_token"  # noqa: S105
    TIMEOUT_TOTAL = "timeout_total"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    AUTH = "auth"
    OVERLOAD = "overload"
    MODEL_NOT_FOUND = "model_not_found"
    ERROR_IN_STREAM = "error_in_stream"
    NO_TOKENS = "no_tokens"
    TRUNCATED_STREAM = "truncated_stream"
    TRUNCATED_PROMPT = "truncated_prompt"
    PROTOCOL = "protocol"


REFUSED = frozenset(
    {
        Reason.CONNECT,
        Reason.TLS,
        Reason.TIMEOUT_CONNECT,
        Reason.HTTP_4XX,
        Reason.AUTH,
        Reason.OVERLOAD,
        Reason.MODEL_NOT_FOUND,
    }
)
"""Why a request never comes to the model."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a probe failed, and one line about it."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class Read:
    """One network read: the clock's seconds when it came, and the events it completed."""

    at: float
    events: tuple[Event, ...]

    @property
    def pieces(self) -> int:
        """How many pieces of text the read brought."""
        return sum(isinstance(event, Token) for event in self.events)


@dataclass(slots=True)
class Exchange:
    """What was seen of one request, in seconds of one clock.

    `ready`: the connection was set up.  `sent`: the request's last byte was handed to the network; where
    that is not known it equals `started`.  `failure`: what the exchange itself met; the stream may hold more.
    """

    started: float
    sent: float
    ready: bool = False
    status: int | None = None
    reads: list[Read] = field(default_factory=list)
    ended: float = 0.0
    failure: Failure | None = None

    def events(self) -> Iterable[Event]:
        """Yield all events in order."""
        return (event for read in self.reads for event in read.events)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe's outcome and figures, in seconds and tokens per second; None is what could not be measured.

    `warmup`: the first probe of a model since it or the exporter came up.  `waited`: the time after
    which the first token was given up, a lower bound of a TTFT.  `gaps`: the ITL of each token after the
    first.  `coalesced`: most pieces of text shared network reads, as behind a buffering proxy, so that there
    is no ITL and no TPOT.  `phases`: connect, queue, load, prefill, decode, whose sum is the time from the
    start to the last read of the answer; empty where the server does not tell its own times.  `at`: Unix time
    at the end.  `answer_ttft`: the time to the first token of the answer proper where thinking came first.
    `connect`: name resolution, TCP and TLS, which are in no other figure but `phases`.
    """

    at: float
    duration: float
    warmup: bool
    reason: Reason | None = None
    error: str = ""
    ttft: float | None = None
    waited: float | None = None
    answer_ttft: float | None = None
    connect: float | None = None
    gaps: tuple[float, ...] = ()
    tpot: float | None = None
    coalesced: bool = False
    phases: Mapping[str, float] = field(default_factory=dict)
    load: float | None = None
    prefill_rate: float | None = None
    decode_rate: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that the server had to compute, as far as it tells which it had not."""
        return None if self.prompt_tokens is None else self.prompt_tokens - (self.cached_tokens or 0)

    @property
    def ok(self) -> bool:
        """Whether the probe gave a complete answer."""
        return self.reason is None

    @property
    def refused(self) -> bool:
        """Whether the request never came to the model."""
        return self.reason in REFUSED

    @property
    def reloaded(self) -> bool:
        """Whether the server loaded the model into memory for this probe."""
        return self.load is not None and self.load > COLD_LOAD

    @property
    def cold(self) -> bool:
        """Whether its figures are no latencies: the model was loaded, or ran for the first time."""
        return self.warmup or self.reloaded


def measure(
    exchange: Exchange, *, at: float, warmup: bool, min_prompt_tokens: int, repeated: bool = False
) -> ProbeResult:
    """Return the figures of an exchange; a failed one has none but `waited`.

    `repeated`: the prompt had just been asked, so that unless the server says how much of it was cached there
    is no prefill rate.
    """
    usage = next((event for event in exchange.events() if isinstance(event, Usage)), Usage())
    duration = exchange.ended - exchange.started
    failure = _failure(exchange, usage, min_prompt_tokens)
    if failure:
        timed_out = failure.reason is Reason.TIMEOUT_FIRST_TOKEN
        waited = exchange.ended - exchange.sent if timed_out else None
        return ProbeResult(at, duration, warmup, failure.reason, failure.text, waited=waited)
    reads = [read for read in exchange.reads if read.pieces]
    coalesced = _coalesced(reads)
    first, last = reads[0].at, reads[-1].at
    ttft = first - exchange.sent
    output = usage.output_tokens
    streamed = output is not None and output > 1 and len(reads) > 1 and not coalesced
    tpot = (last - first) / (output - 1) if streamed and output else None
    # A server that tells no durations is taken at what was seen of it.
    decode_s = last - first if usage.decode_s is None and streamed else usage.decode_s
    computed = (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
    return ProbeResult(
        at=at,
        duration=duration,
        warmup=warmup,
        ttft=ttft,
        answer_ttft=_answer_ttft(exchange),
        connect=exchange.sent - exchange.started,
        gaps=() if coalesced else tuple(_gaps(reads, output)),
        tpot=tpot,
        coalesced=coalesced,
        phases=_phases(exchange, usage, ttft, coalesced),
        load=usage.load_s,
        prefill_rate=None if repeated and usage.cached_tokens is None else _rate(computed, usage.prefill_s),
        decode_rate=_rate((output or 0) - 1, decode_s),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=output,
    )


def _answer_ttft(exchange: Exchange) -> float | None:
    tokens = [(read.at, event.thinking) for read in exchange.reads for event in read.events if isinstance(event, Token)]
    answer = next((at for at, thinking in tokens if not thinking), None)
    return answer - exchange.sent if answer is not None and tokens[0][1] else None


def _failure(exchange: Exchange, usage: Usage, min_prompt_tokens: int) -> Failure | None:
    """Return why a probe is no success: one needs text, the server's word that it is done, and a proper end."""
    error = next((event for event in exchange.events() if isinstance(event, Error)), None)
    if error:
        if error.malformed:
            return Failure(Reason.PROTOCOL, f"the stream is not what the API sends: {error.text}")
        reason = Reason.OVERLOAD if is_overload(error.text) else Reason.ERROR_IN_STREAM
        return Failure(reason, f"the server ended the answer with: {error.text}")
    if exchange.failure:
        return exchange.failure
    if not any(isinstance(event, Done) for event in exchange.events()):
        return Failure(Reason.TRUNCATED_STREAM, "the answer broke off, without `done` or [DONE]; see the server's log")
    if not any(isinstance(event, Token) for event in exchange.events()):
        return Failure(Reason.NO_TOKENS, "the answer has no text; does the model generate text?")
    if usage.prompt_tokens is not None and usage.prompt_tokens < min_prompt_tokens:
        return Failure(
            Reason.TRUNCATED_PROMPT,
            f"the server read {usage.prompt_tokens} tokens of a prompt of at least {min_prompt_tokens}; "
            "raise the model's context length",
        )
    return None


def is_overload(text: str) -> bool:
    """Return whether an error is Ollama's word for a full queue, which comes with 503, in old versions 500."""
    return "server busy" in text


def _coalesced(reads: list[Read]) -> bool:
    """Return whether more than half of the pieces of text came in a read with another piece."""
    shared = sum(read.pieces for read in reads if read.pieces > 1)
    return 2 * shared > sum(read.pieces for read in reads)


def _gaps(reads: list[Read], output_tokens: int | None) -> Iterable[float]:
    """Yield the time before each token after the first read.

    A gap before a read of several pieces is spread evenly over them where the server's count says that each
    piece is one token (the end-of-answer token is counted too and has no text), else it is one gap.
    """
    pieces = sum(read.pieces for read in reads)
    one_each = output_tokens is not None and output_tokens - pieces in (0, 1)
    for before, read in pairwise(reads):
        tokens = read.pieces if one_each else 1
        yield from [(read.at - before.at) / tokens] * tokens


def _phases(exchange: Exchange, usage: Usage, ttft: float, coalesced: bool) -> dict[str, float]:
    """Return where the time from the start to the last read went; empty where the server tells no durations.

    Connect is seen from outside; load and prefill are the server's word.  Queue is what of the TTFT they leave,
    an estimate with all that is neither, and decode is the rest of the answer.  The sum is kept exact: load
    and prefill are cut where they are more than the TTFT (queue is then 0).  Where reads are coalesced the
    TTFT holds decode too, so decode is the server's word as well and queue what all three leave.
    """
    if usage.prefill_s is None or (coalesced and usage.decode_s is None):
        return {}
    total = next(read.at for read in reversed(exchange.reads) if read.events) - exchange.sent
    decode = min(usage.decode_s or 0.0, total) if coalesced else total - ttft
    before = total - decode
    load = min(usage.load_s or 0.0, before)
    prefill = min(usage.prefill_s, before - load)
    phases = {"connect": exchange.sent - exchange.started, "queue": before - load - prefill}
    if usage.load_s is not None:
        phases["load"] = load
    return {**phases, "prefill": prefill, "decode": decode}


def _rate(tokens: int, seconds: float | None) -> float | None:
    return tokens / seconds if tokens > 0 and seconds is not None and seconds >= SHORTEST else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What probes of one model with different prompts tell together, in seconds; None is what they do not.

    TTFT = `fixed` + `seconds_per_token` * prompt tokens, a line through two prompt sizes.  `saving`: how much
    sooner the first token came when the prompt had just been asked.
    """

    seconds_per_token: float | None = None
    fixed: float | None = None
    saving: float | None = None


def compare(results: Mapping[str, ProbeResult]) -> Comparison:
    """Compare probes by kind (small, large, cached) of one turn; a line that falls is noise, and no result."""
    small, large, cached = (results.get(kind) for kind in ("small", "large", "cached"))
    slope = fixed = saving = None
    if small and large and small.ttft and large.ttft and small.computed_tokens and large.computed_tokens:
        more = large.computed_tokens - small.computed_tokens
        if more > 0 and large.ttft > small.ttft:
            slope = (large.ttft - small.ttft) / more
            fixed = max(small.ttft - slope * small.computed_tokens, 0.0)
    first = large or small
    if cached and cached.ttft and first and first.ttft:
        saving = first.ttft - cached.ttft
    return Comparison(slope, fixed, saving)
