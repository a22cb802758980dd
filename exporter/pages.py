"""The pages for a person: plain HTML and CSS, readable on a phone, working without JavaScript and Grafana."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

from exporter import __version__
from exporter.app import App
from exporter.detect import UNKNOWN
from exporter.model import Snapshot
from exporter.physics.causes import causes
from exporter.probe.result import ProbeResult
from exporter.settings import PROBE_KINDS
from exporter.state import TargetState
from exporter.vitals import Latency, Quantile

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--dim:#767676;--ok:#1a7f37;--bad:#cf222e;--card:#8881}
@media(prefers-color-scheme:dark){:root{--dim:#9a9a9a;--ok:#3fb950;--bad:#ff7b72}}
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:64rem}
h1{font-size:1.3rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.4rem 0 .3rem}article h2{margin:0}
p{margin:.3rem 0}a{color:inherit}
header p,.dim{color:var(--dim);font-size:.9rem}
article{border:1px solid var(--line);border-left:.35rem solid var(--ok);border-radius:.4rem}
article{padding:.7rem .9rem;margin:.8rem 0}
article.down{border-left-color:var(--bad)}article.look{border-left-color:var(--line)}
.state{font-weight:600;color:var(--ok)}.down .state{color:var(--bad)}.look .state{color:var(--dim)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:.6rem 0 .2rem}
dl div{background:var(--card);border-radius:.3rem;padding:.4rem .6rem}dt{color:var(--dim);font-size:.8rem}
dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
dd small{display:block;font-size:.78rem;color:var(--dim)}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top}
tr+tr{border-top:1px solid var(--line)}pre{overflow-x:auto;background:var(--card);padding:.6rem;border-radius:.3rem}
nav{margin:.3rem 0 .6rem}nav a{margin-right:1rem}
.facts td:first-child{width:34%}.facts td:first-child code{font-family:inherit;color:var(--dim)}
code{overflow-wrap:anywhere}
"""


def landing(app: App, readings: Sequence[tuple[TargetState, Snapshot]]) -> str:
    """Return the landing page: each target with its state, its five numbers now, and links."""
    up = sum(snapshot.up for state, snapshot in readings if state.wanted)
    wanted = sum(state.wanted for state, _ in readings)
    if wanted:
        summary = f"{up} of {wanted} server{'s' if wanted > 1 else ''} up"
    else:
        summary = "No server was configured and none was found yet; still looking"
    cards = "".join(_card(state, snapshot) for state, snapshot in readings)
    hint = "" if wanted else (
        "<p>Name your server: <code>VLLM_URL=http://HOST:8000</code> or <code>OLLAMA_URL=http://HOST:11434</code> in"
        " the environment, or a file with <code>--config</code>.</p>"
    )  # fmt: skip
    about = f"{summary}. This page renews itself every 5 s. <a href='metrics'>All metrics</a>"
    body = f"<header><h1>llm-vitals</h1><p>{about}</p></header>{hint}{cards}"
    return _page("llm-vitals", body, refresh=True)


def _card(state: TargetState, snapshot: Snapshot) -> str:
    name = escape(state.target.name)
    kind, word = ("", "up") if snapshot.up else ("down", "down") if state.wanted else ("look", "not found")
    engine = escape(_engine(snapshot))
    detail = f"<p>{escape(snapshot.detail)}</p>" if snapshot.detail else ""
    numbers = _numbers(state) + _verdicts(state) if snapshot.up else ""
    return (
        f'<article class="{kind}"><h2>{name} <span class="state">{word}</span></h2>'
        f'<p class="dim">{engine} at {escape(state.target.url)}{_proxy(state)} &middot;'
        f' <a href="debug/{quote(state.target.name)}">details</a></p>{detail}{numbers}</article>'
    )


def _proxy(state: TargetState) -> str:
    if state.proxy is None:
        return ""
    where = state.proxy.where
    return f", its proxy at {escape(where)}" if where else ", its proxy not listening: see the log"


def _verdicts(state: TargetState) -> str:
    """Return a line for each model: what holds now, and the first thing to change if that is not well."""
    lines = []
    for diagnosis in state.watch.diagnoses():
        cause = causes()[diagnosis.cause]
        advice = "" if cause.name in ("healthy", "idle", "unknown") else f" First: {cause.advice(diagnosis.backend)[0]}"
        model = f" ({diagnosis.model})" if len(state.watch.diagnoses()) > 1 else ""
        lines.append(f"<p><strong>{escape(cause.title)}</strong>{escape(model)}.{escape(advice)}</p>")
    return "".join(lines)


def _verdict_section(state: TargetState) -> str:
    rows = []
    for diagnosis in state.watch.diagnoses():
        cause, model = causes()[diagnosis.cause], diagnosis.model
        rows += [(model, "verdict", f"{cause.name}: {cause.title}"), (model, "it means", cause.means)]
        rows += [(model, "seen", sentence) for sentence in diagnosis.evidence]
        rows += [(model, "change", step) for step in cause.advice(diagnosis.backend)]
        rows += [(model, "leave", cause.leave)]
        rows += [(model, "not known", why) for why in diagnosis.facts.why]
    return _section("Verdict", ("model", "what", ""), rows)


def _engine(snapshot: Snapshot) -> str:
    if snapshot.backend == UNKNOWN:
        return "engine not known yet"
    return f"{snapshot.backend} {snapshot.version}".strip()


def _numbers(state: TargetState) -> str:
    vitals = state.vitals()
    if vitals is None:
        return ""
    usage = None if vitals.kv_usage is None else f"{vitals.kv_usage:.1%}"
    note = "the engine sleeps" if vitals.asleep else "now"
    probes = _shortest(state)
    if probes and vitals.ttft is None:
        ttft, itl = (
            _probed([p.ttft for p in probes if p.ttft is not None]),
            _probed([g for p in probes for g in p.gaps]),
        )
    else:
        missing = "waiting for the first probe of a loaded model" if state.backend == "ollama" else "no traffic"
        ttft, itl = _latency(vitals.ttft, missing), _latency(vitals.itl, missing)
    tiles = [
        ("Time to first token", *ttft),
        ("Inter-token latency", *itl),
        ("Requests running", *_gauge(vitals.running)),
        ("Requests waiting", *_gauge(vitals.waiting)),
        ("KV cache in use", *((usage, note) if usage is not None else _gauge(None))),
    ]
    items = "".join(
        f"<div><dt>{title}</dt><dd>{value}<small>{_tied(small)}</small></dd></div>" for title, value, small in tiles
    )
    return f"<dl>{items}</dl>"


def _tied(text: str) -> str:
    """Escape a text and keep each number on one line with its unit."""
    return re.sub(r"(\d) (ms|s)\b", r"\1&nbsp;\2", escape(text))


def _shortest(state: TargetState) -> list[ProbeResult]:
    """Return each model's last good probe with the shortest prompt."""
    found: dict[str, ProbeResult] = {}
    for kind in reversed(PROBE_KINDS):
        for (model, of), result in (state.prober.last if state.prober else {}).items():
            if of == kind and result.ok:
                found[model] = result
    return list(found.values())


def _latency(latency: Latency | None, missing: str) -> tuple[str, str]:
    if latency is None:
        return "&ndash;", missing
    small = f"p99; median {latency.p50}, mean {Quantile(latency.mean)} of {latency.count:.0f} in {latency.window:.0f} s"
    return escape(str(latency.p99)), small


def _probed(values: Sequence[float]) -> tuple[str, str]:
    """Show the median of the last probes, which are too few for a p99."""
    if not values:
        return "&ndash;", "the last probe has none"
    ordered = sorted(values)
    return escape(str(Quantile(ordered[len(ordered) // 2]))), "median of the last probe"


def _gauge(value: float | None) -> tuple[str, str]:
    return ("&ndash;", "not reported by this engine") if value is None else (f"{value:.0f}", "now")


def debug(state: TargetState) -> str:
    """Return the page about a target's last reading: what was fetched, what fed what, and what could not be read."""
    snapshot = state.last
    name = escape(state.target.name)
    if snapshot is None:
        return _page(state.target.name, f"<h1>{name}</h1><p>Not read yet.</p>")
    report = snapshot.report
    facts = [
        ("outcome", snapshot.outcome),
        ("what it means", snapshot.detail or "all is well"),
        ("engine", _engine(snapshot)),
        ("url", state.target.url),
        ("read at", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot.at))),
        ("duration", f"{snapshot.duration * 1000:.1f} ms"),
        ("HTTP status", str(snapshot.status or "none")),
        ("size", f"{snapshot.size} bytes"),
        ("bad lines", str(report.bad_line_count)),
        ("withheld samples", ", ".join(f"{reason}: {count}" for reason, count in report.dropped.items()) or "none"),
        ("unknown families of this engine", ", ".join(report.unknown) or "none"),
    ]
    parts = [
        f'<h1>{name}</h1><nav><a href="../">all servers</a><a href="../metrics">metrics</a></nav>',
        _table((), facts),
        _verdict_section(state),
        _section("Families and the names that feed them", ("family", "engine's name"), report.sources),
        _section("Families of the page that are not relayed", ("family",), ((family,) for family in report.unmapped)),
        _section("Lines that could not be read", ("line",), ((line,) for line in report.bad_lines)),
        _probes(state),
    ]
    return _page(state.target.name, "".join(parts))


def _probes(state: TargetState) -> str:
    if state.prober is None:
        return ""
    rows = [(model, "", "not probed", why_not) for model, why_not in state.prober.skipped.items()]
    for (model, kind), result in state.prober.last.items():
        rows += [(model, kind, what, text) for what, text in _facts(result)]
    return _section("Last probes", ("model", "prompt", "what", ""), rows)


def _facts(result: ProbeResult) -> Iterable[tuple[str, str]]:
    yield "outcome", "ok" if result.ok else f"{result.reason}: {result.error}"
    yield "at", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.at))
    if result.cold:
        yield "cold", "a warm-up, which feeds no latency"
    if result.coalesced:
        yield "coalesced", "most text came in shared network reads, as behind a buffering proxy: no ITL"
    seconds = {"TTFT": result.ttft, "first token of the answer": result.answer_ttft, "waited": result.waited}
    for what, value in {**seconds, "TPOT": result.tpot, **result.phases}.items():
        if value is not None:
            yield what, str(Quantile(value))
    for what, count in (("prompt tokens", result.prompt_tokens), ("tokens generated", result.output_tokens)):
        if count is not None:
            yield what, str(count)


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    return f"<h2>{title}</h2>{_table(heads, rows)}" if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td><code>{escape(text)}</code></td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if heads else f'<table class="facts">{body}</table>'


def _page(title: str, body: str, refresh: bool = False) -> str:
    meta = '<meta http-equiv="refresh" content="5">' if refresh else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{meta}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}"
        f'<footer class="dim"><p>llm-vitals {__version__}</p></footer></body></html>\n'
    )
