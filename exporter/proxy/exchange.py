"""Measures one request of a user as it passes: from bytes to TTFT, ITL, tokens and how it finished.

Nothing of a prompt or an answer is kept: pieces of text are counted and stamped, an answer that is not streamed is
held until it is complete, for the counts at its end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exporter.probe.dialects.ollama_chat import OllamaChat
from exporter.probe.dialects.ollama_generate import OllamaGenerate
from exporter.probe.events import Dialect, Done, Error, Event, Token, Usage
from exporter.probe.result import is_overload
from exporter.proxy.choices import Choices, ChoicesOfChat, ChoicesOfCompletions
from exporter.proxy.http1 import Request, Response
from exporter.proxy.keys import TopValues
from exporter.proxy.observed import ModelNumbers, Observed
from exporter.proxy.responses import OpenAIResponses
from exporter.proxy.watching import Ending, Watcher

LONGEST_WHOLE = 2**20
"""Bytes of an answer that is not streamed, up to which its counts are read: parsing holds up the streams."""

LONGEST_ERROR = 4096

_STREAMS = ("application/x-ndjson", "text/event-stream")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How an endpoint's answers are read; `whole` makes a stream of an answer that is not streamed.

    `streams`: whether a request without `stream` asks for a stream.
    """

    dialect: Callable[[], Dialect]
    streams: bool
    whole: Callable[[bytes], bytes]


def _line(body: bytes) -> bytes:
    return body


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\ndata: [DONE]\n\n"


def _response(body: bytes) -> bytes:
    return b'data: {"type":"response.completed","response":' + body + b"}\n\n"


ENDPOINTS: Mapping[str, Endpoint] = {
    "/api/generate": Endpoint(OllamaGenerate, True, _line),
    "/api/chat": Endpoint(OllamaChat, True, _line),
    "/v1/completions": Endpoint(ChoicesOfCompletions, False, _event),
    "/v1/chat/completions": Endpoint(ChoicesOfChat, False, _event),
    "/v1/responses": Endpoint(OpenAIResponses, False, _response),
}

EMBEDDINGS = frozenset(("/api/embed", "/api/embeddings", "/v1/embeddings"))


def watch(observed: Observed, label: Callable[[object], str], request: Request, at: float) -> Watcher | None:
    """Return the watcher of a request, None for one that is not for a model."""
    if request.method != b"POST":
        return None
    if request.path in EMBEDDINGS:
        return Embedding(observed, label, at)
    endpoint = ENDPOINTS.get(request.path)
    return None if endpoint is None else Generation(observed, label, at, endpoint)


class Embedding:
    """Watches a request for embeddings: its duration is all there is to see."""

    def __init__(self, observed: Observed, label: Callable[[object], str], at: float) -> None:
        self._observed = observed
        self._label = label
        self._asked = TopValues("model", "stream", "n")
        self._size = 0
        self._status = 0
        self.begun_at = at

    @property
    def label(self) -> str:
        """The model's name as it is exported."""
        return self._label(self._asked.found.get("model"))

    def uploaded(self, content: Sequence[bytes]) -> None:
        """Find the model's name."""
        for piece in content:
            self._asked.feed(piece)
            self._size += len(piece)

    def asked(self, at: float) -> None:
        """Time runs from here on: what a client takes to send its request is not the server's."""
        self.begun_at = at

    def answered(self, response: Response) -> None:
        """Keep the status."""
        self._status = response.status

    def received(self, at: float, content: Sequence[bytes]) -> None:
        """Let it pass."""

    def ended(self, at: float, ending: Ending) -> None:
        """Count the duration of a good answer."""
        if ending is Ending.COMPLETE and self._status == 200:
            self._observed.of(self.label).duration.observe(at - self.begun_at)

    def dropped(self) -> None:
        """Leave nothing behind."""


class Generation(Embedding):
    """Watches a request for text."""

    def __init__(self, observed: Observed, label: Callable[[object], str], at: float, endpoint: Endpoint) -> None:
        super().__init__(observed, label, at)
        self.first_at: float | None = None
        self._endpoint = endpoint
        self._dialect = endpoint.dialect()
        self._choices = self._dialect if isinstance(self._dialect, Choices) else Choices()
        self._streamed = True
        self._readable = True
        self._unpack: Callable[[bytes], bytes] | None = None
        self._held = bytearray()
        self._last_at = 0.0
        self._pieces = 0
        self._usage = Usage()
        self._done: str | None = None
        self._failed: str | None = None

    def context(self, tokens_per_byte: float) -> float:
        """Return the tokens so far, the prompt's estimated from the request's size until the server counts them."""
        prompt = self._usage.prompt_tokens
        return (self._size * tokens_per_byte if prompt is None else prompt) + self._pieces

    def asked(self, at: float) -> None:
        """Count it as under way."""
        super().asked(at)
        self._observed.under_way.add(self)

    def answered(self, response: Response) -> None:
        """See whether the answer is a stream, and what it is packed in."""
        super().answered(response)
        kind = response.value(b"content-type").partition(b";")[0].strip().lower().decode("latin-1")
        if self._asked.found.get("n", 1) not in (1, None):
            self._choices.several = True
        wanted = self._asked.found.get("stream", self._endpoint.streams) is True
        self._streamed = kind in _STREAMS or (wanted and kind != "application/json")
        codings = response.options(b"content-encoding")
        if codings == [b"gzip"] or codings == [b"deflate"]:
            self._unpack = _unpacking()
        self._readable = not codings or self._unpack is not None

    def received(self, at: float, content: Sequence[bytes]) -> None:
        """Take what one read brought: stamped pieces of a stream, or a part of the whole."""
        if not self._readable:
            return
        data = content[0] if len(content) == 1 else b"".join(content)
        if self._unpack is not None:
            data = self._unpack(data)
        if self._status == 200 and self._streamed:
            self._take(at, self._dialect.feed(data))
            return
        self._held += data
        if len(self._held) > (LONGEST_WHOLE if self._status == 200 else LONGEST_ERROR):
            self._held.clear()
            self._readable = False

    def ended(self, at: float, ending: Ending) -> None:
        """Draw the sum."""
        self._observed.under_way.discard(self)
        if self._status == 200 and self._readable and ending in (Ending.COMPLETE, Ending.UNHEARD):
            if not self._streamed:
                # A line feed between two of JSON's tokens is white space; in a string there is none.
                whole = bytes(self._held).replace(b"\n", b" ")
                for event in self._dialect.feed(self._endpoint.whole(whole)) if whole else ():
                    self._note(event)
            self._take(at, self._dialect.finish(), last=True)
        if self._done in ("load", "unload"):
            return  # Ollama's answer to an empty prompt: nothing was generated.
        numbers = self._observed.of(self.label)
        reason = self._reason(ending)
        numbers.finished[reason] += 1
        self._count_tokens(numbers)
        if reason in ("stop", "length"):
            self._count_times(numbers, at - self.begun_at)

    def dropped(self) -> None:
        """Leave nothing behind."""
        self._observed.under_way.discard(self)

    @property
    def _output(self) -> int:
        """The tokens generated by the server's count, which may be of one of several choices only, else the pieces."""
        told = self._usage.output_tokens
        return self._pieces if told is None or (self._choices.several and told < self._pieces) else told

    def _take(self, at: float, events: Sequence[Event], last: bool = False) -> None:
        pieces = 0
        for event in events:
            if isinstance(event, Token):
                pieces += 1
            else:
                self._note(event)
        if not pieces or (last and not self._streamed):
            return
        numbers = self._observed.of(self.label)
        if self.first_at is None:
            self.first_at = at
            numbers.ttft.observe(at - self.begun_at)
        elif not self._choices.several:
            # Several pieces in one read are as many tokens, made one after the other since the read before.
            numbers.itl.observe((at - self._last_at) / pieces, pieces)
        self._last_at = at
        self._pieces += pieces
        numbers.generation_tokens += pieces

    def _note(self, event: Event) -> None:
        if isinstance(event, Usage):
            self._usage = event
        elif isinstance(event, Done):
            self._done = event.reason
        elif isinstance(event, Error) and not event.malformed and self._failed is None:
            self._failed = "overload" if is_overload(event.text) else "error"

    def _reason(self, ending: Ending) -> str:
        # Some servers end an answer properly after they reported an error in it.
        if self._done is not None and self._failed is None:
            return "length" if self._done == "length" else "stop"
        if ending in (Ending.CLIENT_GONE, Ending.UNHEARD):
            return "client_gone"  # Some servers end an answer that nobody hears as if it were complete.
        if self._status >= 400:
            busy = self._status in (429, 503) or is_overload(self._held.decode("latin-1"))
            return "overload" if busy else "error"
        if self._failed is not None:
            return self._failed
        # What cannot be read but came to its proper end is taken for good.
        unread = self._status == 200 and not self._readable
        return "stop" if unread and ending is Ending.COMPLETE else "error"

    def _count_tokens(self, numbers: ModelNumbers) -> None:
        usage = self._usage
        if usage.prompt_tokens is not None:
            numbers.count_prompt(usage.prompt_tokens, self._size)
        if usage.cached_tokens is not None:
            numbers.cached_tokens = (numbers.cached_tokens or 0) + usage.cached_tokens
        # Those that came were counted as they came: a rate of what is counted at the end jumps.
        numbers.generation_tokens += max(self._output - self._pieces, 0)

    def _count_times(self, numbers: ModelNumbers, duration: float) -> None:
        """Count what is known at the end.

        Of an answer that came as a whole the server's own times tell when its first token was made.  The queue
        is what the server's load and prefill leave of the time to the first token.
        """
        usage = self._usage
        numbers.duration.observe(duration)
        ttft = decode = None
        if self.first_at is not None:
            ttft, decode = self.first_at - self.begun_at, self._last_at - self.first_at
        elif not self._streamed and usage.decode_s is not None and self._output:
            decode = min(usage.decode_s, duration)
            ttft = duration - decode
            numbers.ttft.observe(ttft)
        if decode and self._output > 1 and not self._choices.several:
            numbers.tpot.observe(decode / (self._output - 1))
        if ttft is not None and usage.prefill_s is not None:
            numbers.queue.observe(max(ttft - (usage.load_s or 0.0) - usage.prefill_s, 0.0))


def _unpacking() -> Callable[[bytes], bytes]:
    """Return what unpacks gzip or zlib piece by piece; more than a read could hold by far is refused."""
    unpacker = zlib.decompressobj(wbits=47)

    def unpack(data: bytes) -> bytes:
        out = unpacker.decompress(data, LONGEST_WHOLE)
        if unpacker.unconsumed_tail:
            raise ValueError("a packed answer grows beyond measure")
        return out

    return unpack
