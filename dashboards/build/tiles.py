"""Tiles: one number for all servers chosen, coloured by a threshold that is a variable.

Grafana's thresholds cannot be variables, so each colour has a query of its own, of which one alone answers.
"""

from __future__ import annotations

from collections.abc import Callable

from grafana_foundation_sdk.builders import stat

from dashboards.build import panels as p
from dashboards.build import queries as q
from dashboards.build.panels import Query, Text
from prometheus.build.promql import LABELS

RUNNING, WAITING = "vitals_requests_running", "vitals_requests_waiting"

LIMITS = {
    "ttft": {"0.001": "< 1 ms", "178": "> 178 s", "2560": "> 2560 s"},
    "itl": {"0.01": "< 10 ms", "0.001": "< 1 ms", "80": "> 80 s", "178": "> 178 s"},
}
"""The first and last bounds that vLLM, the probes and the proxy have if nobody changed them, in words."""


def bound_texts(short: str) -> dict[str, tuple[str, str]]:
    """Return the mapping of a quantile that is only a bound to what it means."""
    return {value: (text, p.GREEN if text.startswith("<") else p.RED) for value, text in LIMITS[short].items()}


STATES = {
    f"{q.DOWN}": ("DOWN", p.RED),
    f"{q.GONE}": ("no data", p.ORANGE),
    f"{q.ASLEEP}": ("asleep", p.BLUE),
}
SAYS = (
    "\n\nDOWN: no server chosen here answers as it should. no data: Prometheus hears nothing of them, see the exporter."
)


def servers() -> stat.Panel:
    """Return the tile of how many servers are up, and how many are not."""
    reported = q.series("vitals_target_up", at=q.AT_END)
    up, down = (
        f"count({q.series('vitals_target_up')} == {value}) and on () (count({reported} == {value}))" for value in (1, 0)
    )
    return p.tile(
        Text("Servers", "How many servers answer as they should, and how many do not.", "all up."),
        "none",
        [
            (Query(up, "up"), p.GREEN),
            (Query(down, "DOWN"), p.RED),
            (Query(f"absent({reported}) + {q.GONE - 1}", "no data"), p.ORANGE),
        ],
        p.states(STATES),
    )


def _latency_tile(short: str, name: str, means: str) -> stat.Panel:
    def value(at: str) -> str:
        return q.series(q.headline(short, "p99_bounded"), at=at)

    def beyond(at: str) -> str:
        return q.series(q.headline(short, "p99_bounded"), 'bound="≥"', at)

    labels, legend = "target, backend, model, source", "{{target}} · {{source}} {{bound}}"
    limit = f"${short}_slo"
    return p.tile(
        Text(
            f"{name} p99",
            f"{means} of the slowest server now, over 5 minutes: of 100 {'requests' if short == 'ttft' else 'tokens'}"
            " 99 came sooner. Below the figure: the server, and whether its users' traffic or our probes tell it."
            f" Green up to the threshold chosen at the top, red above.{SAYS} no traffic: nothing was asked.",
            "green, and flat behind the figure.",
        ),
        "s",
        [
            (Query(_worst(value, limit, above=False, labels=labels, beyond=beyond), legend), p.GREEN),
            (Query(_worst(value, limit, above=True, labels=labels, beyond=beyond), legend), p.RED),
            (Query(state(value), " "), p.GREY),
        ],
        p.states({**STATES, f"{q.NONE}": ("no traffic", p.GREY), **bound_texts(short)}),
    )


def ttft() -> stat.Panel:
    """Return the tile of p99 of TTFT."""
    return _latency_tile("ttft", "TTFT", "Time to first token, queue and prefill together,")


def itl() -> stat.Panel:
    """Return the tile of p99 of ITL."""
    return _latency_tile("itl", "ITL", "Inter-token latency, the pause between two tokens of an answer,")


def _total_tile(text: Text, gauge: str, limit: str) -> stat.Panel:
    def value(at: str) -> str:
        return q.series(gauge, at=at)

    return p.tile(
        text,
        "none",
        [
            (Query(_total(gauge, limit, above=False), "all servers"), p.GREEN),
            (Query(_total(gauge, limit, above=True), "all servers"), p.RED),
            (Query(state(value), " "), p.GREY),
        ],
        p.states({**STATES, f"{q.NONE}": ("not told", p.GREY)}),
    )


def running() -> stat.Panel:
    """Return the tile of the requests running."""
    return _total_tile(
        Text(
            "Running",
            "Requests that are computed now, added over the servers chosen: the batch that shares the GPU. Red above"
            " the"
            f" number chosen at the top.{SAYS} not told: the servers do not report it, as an Ollama without the proxy.",
            "below the batch limit of the servers (vLLM: --max-num-seqs).",
        ),
        RUNNING,
        "$running_limit",
    )


def waiting() -> stat.Panel:
    """Return the tile of the requests waiting."""
    return _total_tile(
        Text(
            "Waiting",
            "Requests that found no place yet, added over the servers chosen. Red above the number chosen at the top."
            f"{SAYS} not told: the servers do not report it.",
            "0, or short peaks.",
        ),
        WAITING,
        "$waiting_limit",
    )


def kv() -> stat.Panel:
    """Return the tile of the KV-cache usage of the fullest engine."""

    def value(at: str) -> str:
        return q.fullest(at=at)

    queries = [_worst(value, "$kv_limit", above).replace(" group_left (bound)", "") for above in (False, True)]
    return p.tile(
        Text(
            "KV cache",
            "Share of the KV-cache blocks in use on the fullest engine of all, whose server stands below. Red above the"
            f" share chosen at the top. asleep: the engines gave their memory back.{SAYS}",
            "below 90 %; a full cache swings between about 80 % and 100 % while requests wait or are preempted.",
        ),
        "percentunit",
        [
            (Query(queries[0], "{{target}}"), p.GREEN),
            (Query(queries[1], "{{target}}"), p.RED),
            (Query(sleeping_or(state(value)), " "), p.GREY),
        ],
        p.states({**STATES, f"{q.NONE}": ("not told", p.GREY)}),
    ).max(1)


Selector = Callable[[str], str]
"""Makes an expression from a modifier ("" or AT_END) for all its selectors."""


def _worst(value: Selector, limit: str, above: bool, labels: str = LABELS, beyond: Selector | None = None) -> str:
    """Return the trend of the highest of `value` at the end of the time range, if that is above the limit or not.

    `labels` tell its series apart.  Where the value has a label `bound`, it is that of the end.  `beyond` are those
    of the values that are only a last bound: they lie above it.
    """
    now = f"topk(1, {q.of_those_up(value(q.AT_END), q.AT_END)})"
    compared = f"({now}) {'>' if above else '<='} {limit}"
    if beyond is not None:
        at_limit = f"on ({labels}) ({beyond(q.AT_END)} == {limit})"
        compared += f" or ({now}) and {at_limit}" if above else f" unless {at_limit}"
    return f"max by ({labels}) ({value('')})\n* on ({labels}) group_left (bound) ({compared}) ^ 0"


def _total(gauge: str, limit: str, above: bool) -> str:
    """Return the trend of a gauge's sum over servers, if it is above the limit at the end of the range, or not."""
    now = f"sum({q.of_those_up(q.series(gauge, at=q.AT_END), q.AT_END)})"
    return f"sum({q.series(gauge)})\nand on () ({now} {'>' if above else '<='} {limit})"


def state(value: Selector) -> str:
    """Return what is to be said instead of a number: DOWN if all servers are, GONE, or NONE if none has a value."""
    reported = q.series("vitals_target_up", at=q.AT_END)
    return (
        f"(max({reported}) == 0) + {q.DOWN}"
        f"\nor (absent({reported}) + {q.GONE - 1})"
        f"\nor (max({reported}) + {q.NONE - 1} unless on () ({q.of_those_up(value(q.AT_END), q.AT_END)}))"
    )


def sleeping_or(expr: str) -> str:
    """Return ASLEEP if no engine of a server that is up is awake, else `expr`."""
    asleep = f"min({q.of_those_up(q.series('vitals_engine_asleep', at=q.AT_END), q.AT_END)})"
    return f"(({asleep}) == 1) + {q.ASLEEP - 1}\nor {expr}"
