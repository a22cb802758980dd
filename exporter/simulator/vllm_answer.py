"""The bytes of vLLM's answers: event streams and whole ones, key by key as version 0.32 was recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass

from exporter.simulator.openai_request import Asks
from exporter.simulator.server import compact
from exporter.simulator.truth import Record

FINGERPRINT = "vllm-simulated"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer's constant parts; every chunk of its stream repeats them.

    `timed`: the request whose times its end tells, as with --enable-per-request-metrics.
    """

    id: str
    created: int
    asks: Asks
    timed: Record | None = None

    @property
    def _head(self) -> dict[str, object]:
        kind = "chat.completion.chunk" if self.asks.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.asks.model}

    def _usage(self, tokens: int) -> dict[str, object]:
        prompt = len(self.asks.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _event(self, choice: dict[str, object], tokens: int, extra: dict[str, object]) -> bytes:
        event = self._head | {"choices": [choice]}
        if self.asks.continuous_usage:
            event["usage"] = self._usage(tokens) | {"completion_tokens_details": None}
        return b"data: " + compact(event | extra).encode() + b"\n\n"

    def opening(self) -> bytes:
        """Return what precedes the first token: a chat's chunk with the role, nothing for a completion."""
        if not self.asks.chat:
            return b""
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._event(choice, 0, {"prompt_token_ids": None, "prompt_text": None})

    def chunk(self, text: str, tokens: int, finish: str | None) -> bytes:
        """Return one event; `tokens` counts all tokens up to and with this one's."""
        choice: dict[str, object] = {"index": 0}
        if self.asks.chat:
            choice |= {"delta": {"content": text}, "logprobs": None, "finish_reason": finish}
            choice |= ({"stop_reason": None} if finish else {}) | {"token_ids": None}
        else:
            choice |= {"text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
            choice |= {"prompt_token_ids": None, "token_ids": None}
        last = finish is not None and not self.asks.usage
        return self._event(choice, tokens, {"system_fingerprint": FINGERPRINT} if last else {})

    def template(self) -> tuple[bytes, bytes]:
        """Return what stands before and after the text, JSON-quoted, in every chunk that is not the last."""
        before, _, after = self.chunk("\0", 0, None).partition(b'"\\u0000"')
        return before, after

    def closing(self, tokens: int) -> bytes:
        """Return what follows the last token: the usage, if it was asked for, and the end mark."""
        event = self._head | {"choices": [], "usage": self._usage(tokens), "system_fingerprint": FINGERPRINT}
        if self.timed is not None:
            event["metrics"] = {key: value for key, value in _metrics(self.timed).items() if value is not None}
        return (b"data: " + compact(event).encode() + b"\n\n" if self.asks.usage else b"") + b"data: [DONE]\n\n"

    def whole(self, text: str, tokens: int, finish: str, cached: int) -> bytes:
        """Return an answer that is not streamed."""
        choice: dict[str, object] = {"index": 0}
        if self.asks.chat:
            message = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
            }
            choice["message"] = message | {"function_call": None, "tool_calls": [], "reasoning": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None}
        if not self.asks.chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        details = {"cached_tokens": cached} if cached else None
        usage = self._usage(tokens) | {"prompt_tokens_details": details, "completion_tokens_details": None}
        kind = "chat.completion" if self.asks.chat else "text_completion"
        answer = self._head | {"object": kind, "choices": [choice], "service_tier": None}
        answer |= {"system_fingerprint": FINGERPRINT, "usage": usage}
        if self.asks.chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        metrics = None if self.timed is None else _metrics(self.timed)
        answer |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": metrics}
        return compact(answer).encode()


def _metrics(record: Record) -> dict[str, float | None]:
    """Return a finished request's times; the first token's is counted from scheduling on."""
    return {
        "time_to_first_token_ms": record.prefill * 1000,
        "generation_time_ms": record.decode * 1000,
        "queue_time_ms": record.queue * 1000,
        "mean_itl_ms": record.tpot * 1000 if record.output_tokens > 1 else None,
        "tokens_per_second": record.output_tokens / (record.prefill + record.decode),
        "speculative_decoding": None,
    }


def quoted(text: str) -> bytes:
    """Return text as a JSON string."""
    return json.dumps(text, ensure_ascii=False).encode()


def error(message: str, kind: str, param: str | None, code: int) -> str:
    """Return an error's body."""
    return compact({"error": {"message": message, "type": kind, "param": param, "code": code}})
