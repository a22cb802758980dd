"""An Ollama answer on its way to the client: which tokens are thoughts, what shares a line, what the end says."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from exporter.simulator import words
from exporter.simulator.clock import Clock
from exporter.simulator.driver import Stream
from exporter.simulator.ollama_answer import Dialect, Summary
from exporter.simulator.server import compact

BROKEN = "an error was encountered while running the model: unexpected EOF"


@dataclass(slots=True)
class Faults:
    """What goes wrong with answers from now on.

    `silent_end_after`: a stream ends cleanly after so many tokens, without a last line, as Ollama's guard
    against repetition makes it.  `tokens_per_line`: how many tokens share a line, as with split characters.
    """

    silent_end_after: int | None = None
    tokens_per_line: int = 1


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known when the runner takes a request: when it came, how long the load took (simulated seconds).

    The first `thinking` tokens are thoughts; `tell_cached`: whether the end tells the cached tokens.
    """

    began: float
    load: float
    thinking: int
    tell_cached: bool


class OngoingAnswer:
    """One answer on its way: which tokens are thoughts, what shares a line, and what the end says."""

    def __init__(self, stream: Stream, dialect: Dialect, clock: Clock, faults: Faults, opening: Opening) -> None:
        self._stream = stream
        self._dialect = dialect
        self._clock = clock
        self._faults = faults
        self._opening = opening
        self._tokens = 0
        self._text: list[str] = []
        self._thoughts: list[str] = []

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send pieces as tokens come; the headers go out with the first, so a failure before it has a status."""
        response = web.StreamResponse(headers={"Content-Type": self._dialect.content_type})
        held: list[tuple[str, bool]] = []
        while True:
            update = await self._stream.next()
            at = self._clock.unix(update.at)
            if update.finished in ("abort", "error"):
                if not response.prepared:
                    return refuse(self._dialect, BROKEN, 500)
                await response.write(self._dialect.failed(BROKEN))
                break
            held += self._pieces(update.tokens)
            silent = self._faults.silent_end_after
            cut = silent is not None and self._tokens >= silent
            out = b""
            if held and (len(held) >= self._faults.tokens_per_line or update.finished or cut):
                for thinking in (True, False):
                    text = "".join(text for text, thought in held if thought is thinking)
                    out += self._dialect.piece(text, thinking, at) if text else b""
                held = []
            if out and not response.prepared:
                await response.prepare(request)
            if out:
                await response.write(out)
            if cut:
                break
            if update.finished:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(self._dialect.done(self._summary(update.finished, update.at), at))
                break
        await response.write_eof()
        return response

    async def whole(self) -> web.Response:
        """Send everything at the end."""
        while True:
            update = await self._stream.next()
            if update.finished in ("abort", "error"):
                return refuse(self._dialect, BROKEN, 500)
            self._pieces(update.tokens)
            if update.finished:
                at = self._clock.unix(update.at)
                return reply(self._dialect.whole(self._summary(update.finished, update.at), at))

    def _pieces(self, tokens: list[int]) -> list[tuple[str, bool]]:
        """Return (text, whether it is a thought); the marks around the thoughts are tokens without text."""
        pieces = []
        for index, token in enumerate(tokens, self._tokens):
            thinking = index < self._opening.thinking
            if thinking and index in (0, self._opening.thinking - 1):
                continue
            text = words.decode([token])
            (self._thoughts if thinking else self._text).append(text)
            pieces.append((text, thinking))
        self._tokens += len(tokens)
        return pieces

    def _summary(self, reason: str, at: float) -> Summary:
        record = self._stream.record
        return Summary(
            reason=reason,
            text="".join(self._text),
            thoughts="".join(self._thoughts),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens if self._opening.tell_cached else None,
            output_tokens=record.output_tokens,
            total=at - self._opening.began,
            load=self._opening.load,
            prompt_eval=record.prefill,
            eval=record.decode,
            context=list(self._stream.sequence.held.tokens),
        )


def json_reply(value: object, status: int = 200) -> web.Response:
    """Return a response that holds a value as JSON."""
    return web.Response(text=compact(value), status=status, content_type="application/json", charset="utf-8")


def reply(body: bytes) -> web.Response:
    """Return a response that holds finished JSON."""
    return web.Response(body=body, headers={"Content-Type": "application/json; charset=utf-8"})


def refuse(dialect: Dialect, message: str, status: int) -> web.Response:
    """Return an error in the dialect it was asked in."""
    headers = {"Content-Type": "application/json; charset=utf-8"}
    return web.Response(body=dialect.refusal(message, status), status=status, headers=headers)
