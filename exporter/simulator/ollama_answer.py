"""The bytes of Ollama's answers in its four dialects, key by key as they were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from exporter.simulator.server import compact


def timestamp(unix: float) -> str:
    """Return a Unix time as Go prints it: RFC 3339 with nanoseconds, trailing zeros cut."""
    whole, nanos = divmod(round(unix * 1e9), 1_000_000_000)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanos:09d}".rstrip("0").rstrip(".")
    return f"{text}{fraction}Z"


def nanoseconds(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the end of an answer tells: durations in seconds; `text` and `thoughts` are the whole answer."""

    reason: str
    text: str
    thoughts: str
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    total: float
    load: float
    prompt_eval: float
    eval: float
    context: list[int]

    def counters(self) -> dict[str, object]:
        """Return the counters of the native API; times of the runner come in whole microseconds."""
        out: dict[str, object] = {
            "total_duration": nanoseconds(self.total),
            "load_duration": nanoseconds(self.load),
            "prompt_eval_count": self.prompt_tokens,
        }
        if self.cached_tokens is not None:
            out["prompt_eval_cached_count"] = self.cached_tokens
        return out | {
            "prompt_eval_duration": max(1, round(self.prompt_eval * 1e6)) * 1000,
            "eval_count": self.output_tokens,
            "eval_duration": max(1, round(self.eval * 1e6)) * 1000,
        }


class Dialect(Protocol):
    """How one endpoint writes an answer; `at` is a Unix time in seconds."""

    content_type: str

    def piece(self, text: str, thinking: bool, at: float) -> bytes:
        """Return one piece of a stream."""
        ...

    def done(self, summary: Summary, at: float) -> bytes:
        """Return the end of a stream."""
        ...

    def failed(self, message: str) -> bytes:
        """Return the end of a stream that broke."""
        ...

    def whole(self, summary: Summary, at: float) -> bytes:
        """Return an answer that is not streamed."""
        ...

    def refusal(self, message: str, status: int) -> bytes:
        """Return the body of an error."""
        ...


class Native:
    """/api/generate and /api/chat: newline-delimited JSON."""

    content_type = "application/x-ndjson"

    def __init__(self, model: str, chat: bool) -> None:
        self._model = model
        self._chat = chat

    def piece(self, text: str, thinking: bool, at: float) -> bytes:
        """Return one line."""
        return self._line(self._body("" if thinking else text, text if thinking else "", at) | {"done": False})

    def done(self, summary: Summary, at: float) -> bytes:
        """Return the last line, which has the counters and no text."""
        return self._line(self._end(summary, "", "", at))

    def failed(self, message: str) -> bytes:
        """Return a line in place of the last."""
        return self._line({"error": message})

    def whole(self, summary: Summary, at: float) -> bytes:
        """Return the only object."""
        return compact(self._end(summary, summary.text, summary.thoughts, at)).encode()

    def refusal(self, message: str, status: int) -> bytes:
        """Return the error object, which does not tell its status."""
        return compact({"error": message}).encode()

    def idle(self, reason: str, at: float) -> bytes:
        """Return the answer to a request without a prompt: `load` or `unload`, and no durations."""
        return compact(self._body("", "", at) | {"done": True, "done_reason": reason}).encode()

    def _body(self, text: str, thoughts: str, at: float) -> dict[str, object]:
        thinking = {"thinking": thoughts} if thoughts else {}
        head: dict[str, object] = {"model": self._model, "created_at": timestamp(at)}
        if self._chat:
            return head | {"message": {"role": "assistant", "content": text} | thinking}
        return head | {"response": text} | thinking

    def _end(self, summary: Summary, text: str, thoughts: str, at: float) -> dict[str, object]:
        end = self._body(text, thoughts, at) | {"done": True, "done_reason": summary.reason}
        return end | ({} if self._chat else {"context": summary.context}) | summary.counters()

    def _line(self, value: dict[str, object]) -> bytes:
        return compact(value).encode() + b"\n"


class OpenAI:
    """/v1/chat/completions and /v1/completions as Ollama writes them: server-sent events."""

    content_type = "text/event-stream"

    def __init__(self, model: str, chat: bool, number: int, usage: bool) -> None:
        self._model = model
        self._chat = chat
        self._id = f"{'chatcmpl' if chat else 'cmpl'}-{number}"
        self._usage = usage
        self._begun = False

    def piece(self, text: str, thinking: bool, at: float) -> bytes:
        """Return one event; the first of a chat carries the role as well."""
        if not self._chat:
            return self._event([{"text": text, "index": 0, "finish_reason": None}], at)
        delta: dict[str, object] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        delta |= {"content": "", "reasoning": text} if thinking else {"content": text}
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}], at)

    def done(self, summary: Summary, at: float) -> bytes:
        """Return the finish reason's event, the usage's if it was asked for, and the end mark."""
        if self._chat:
            choice: dict[str, object] = {"index": 0, "delta": {}, "finish_reason": summary.reason}
        else:
            choice = {"text": "", "index": 0, "finish_reason": summary.reason}
        usage = self._event([], at, _usage(summary)) if self._usage else b""
        return self._event([choice], at) + usage + b"data: [DONE]\n\n"

    def failed(self, message: str) -> bytes:
        """Return an event in place of the last."""
        return b"data: " + self.refusal(message, 500) + b"\n\n"

    def whole(self, summary: Summary, at: float) -> bytes:
        """Return the only object."""
        thoughts = {"reasoning": summary.thoughts} if summary.thoughts else {}
        message = {"role": "assistant", "content": summary.text} | thoughts
        if self._chat:
            choice: dict[str, object] = {"index": 0, "message": message, "finish_reason": summary.reason}
        else:
            choice = {"text": summary.text, "index": 0, "finish_reason": summary.reason}
        kind = "chat.completion" if self._chat else "text_completion"
        return compact(self._body(kind, [choice], at) | {"usage": _usage(summary)}).encode()

    def refusal(self, message: str, status: int) -> bytes:
        """Return the error object."""
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
        return compact({"error": {"message": message, "type": kind, "param": None, "code": None}}).encode()

    def _event(self, choices: list[dict[str, object]], at: float, usage: dict[str, int] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        event = self._body(kind, choices, at)
        if usage is not None:
            event["usage"] = usage
        elif self._usage and not self._chat:  # recorded so: zeros in each earlier event of a completion
            event["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return b"data: " + compact(event).encode() + b"\n\n"

    def _body(self, kind: str, choices: list[dict[str, object]], at: float) -> dict[str, object]:
        head: dict[str, object] = {"id": self._id, "object": kind, "created": int(at)}
        rest: dict[str, object] = {"model": self._model, "system_fingerprint": "fp_ollama"}
        return head | rest | {"choices": choices} if self._chat else head | {"choices": choices} | rest


def _usage(summary: Summary) -> dict[str, int]:
    return {
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.output_tokens,
        "total_tokens": summary.prompt_tokens + summary.output_tokens,
    }
