"""`llm-vitals explain`: what a running exporter, or a Prometheus at some time, says of each server, in plain words."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx

from exporter import words
from exporter.physics import recorded
from exporter.physics.explain import Explanation, explanation, text
from exporter.values import without_credentials

TIMEOUT = 30.0
"""Seconds for one answer."""

SETTLE = 45.0
"""Seconds after which a verdict that is not known yet stays unknown: a minute's readings are not waited for in full."""

AGAIN = 5.0
"""Seconds between two questions while the verdict settles."""


class ExplainError(Exception):
    """One line that says what cannot be explained, and the remedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the target's name (default: all)")
    parser.add_argument(
        "--exporter", default="http://127.0.0.1:10434", metavar="URL", help="the running exporter (default %(default)s)"
    )
    parser.add_argument("--prometheus", metavar="URL", help="ask this Prometheus instead of the exporter")
    parser.add_argument(
        "--at", type=_moment, metavar="TIME", help="with --prometheus: when (2026-01-31T14:05:00Z, or Unix seconds)"
    )
    parser.add_argument(
        "--context",
        type=_tokens,
        default=8000,
        metavar="TOKENS",
        help="say how many contexts of this length fit (8000)",
    )
    parser.add_argument("--json", action="store_true", help="JSON for programs: seconds, bytes, tokens")


def run(options: argparse.Namespace) -> int:
    """Print the explanations; return the exit code: 0, or 1 with one line on stderr."""
    try:
        if options.at is not None and options.prometheus is None:
            raise ExplainError("--at needs --prometheus: the exporter itself knows only the present")
        with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
            found = _recorded(client, options) if options.prometheus else _present(client, options)
    except ExplainError as error:
        sys.stderr.write(f"llm-vitals: {error}\n")
        return 1
    shown = json.dumps(found, indent=2) + "\n" if options.json else "\n".join(map(text, found))
    sys.stdout.write("\n".join(map(words.printable, shown.split("\n"))))
    return 0


def _present(client: httpx.Client, options: argparse.Namespace) -> list[Explanation]:
    """Ask the exporter; again for a while if nobody else does and it has nothing to compare with yet."""
    url = f"{options.exporter.rstrip('/')}/-/explain"
    until = time.monotonic() + SETTLE
    said = False
    while True:
        answer: list[Explanation] = _get(
            client, url, {"context": str(options.context)}, "llm-vitals", _are_explanations
        )
        if not answer:
            where = without_credentials(options.exporter)
            raise ExplainError(f"{where} knows no server yet; `llm-vitals check` says where it looks for one")
        found = [item for item in answer if options.target in (None, item["target"])]
        if not found:
            known = ", ".join(sorted({item["target"] for item in answer}))
            raise ExplainError(f"no target is called {options.target!r}; there are: {known}")
        young = any(
            item["verdict"]["cause"] == "unknown" and item["verdict"]["held_seconds"] < SETTLE and not item.get("down")
            for item in found
        )
        if not young or time.monotonic() > until:
            return found
        if not said:
            sys.stderr.write(f"watching, as the verdict compares readings ({SETTLE:.0f} s at most) ...\n")
        said = True
        time.sleep(AGAIN)


def _recorded(client: httpx.Client, options: argparse.Namespace) -> list[Explanation]:
    """Ask a Prometheus for the series up to a time."""
    at = options.at if options.at is not None else time.time()
    targets = [options.target]
    if options.target is None:
        up = _query(client, options.prometheus, "vitals_target_up", at)
        targets = sorted({series["metric"]["target"] for series in up})
    found = [
        explanation(diagnosis, options.context)
        for target in targets
        for diagnosis in recorded.diagnoses(_query(client, options.prometheus, recorded.selector(target), at))
    ]
    if not found:
        what = f"of target {options.target!r}" if options.target else "of llm-vitals"
        raise ExplainError(
            f"{without_credentials(options.prometheus)} has no series {what} at that time; does it scrape the exporter?"
        )
    return found


def _query(client: httpx.Client, prometheus: str, promql: str, at: float) -> list[dict[str, Any]]:
    url = f"{prometheus.rstrip('/')}/api/v1/query"
    answer = _get(client, url, {"query": promql, "time": f"{at:.3f}"}, "Prometheus", _is_result)
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def _are_explanations(answer: Any) -> bool:
    return isinstance(answer, list) and all(
        isinstance(item, dict) and {"target", "verdict"} <= set(item) for item in answer
    )


def _is_result(answer: Any) -> bool:
    data = answer.get("data") if isinstance(answer, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    return isinstance(result, list) and all(isinstance(item, dict) and "metric" in item for item in result)


def _get(client: httpx.Client, url: str, parameters: dict[str, str], what: str, known: Callable[[Any], bool]) -> Any:
    """Return what a server answers, if it is of a kind that is `known`; raise ExplainError."""
    try:
        answer = client.get(url, params=parameters)
        answer.raise_for_status()
        content = answer.json()
    except httpx.HTTPStatusError as error:
        raise ExplainError(
            f"{without_credentials(url)} answered {error.response.status_code}; is that a {what}?"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExplainError(f"no answer from {without_credentials(url)} ({error}); is it running there?") from None
    except ValueError:
        raise ExplainError(f"{without_credentials(url)} sent no JSON; is that a {what}?") from None
    if not known(content):
        raise ExplainError(f"{without_credentials(url)} sent JSON of another kind; is that a {what}?")
    return content


def _moment(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected 2026-01-31T14:05:00Z or Unix seconds, got {given!r}") from None
    return moment.timestamp()


def _tokens(given: str) -> int:
    if not given.isdigit() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of tokens, got {given!r}")
    return int(given)
