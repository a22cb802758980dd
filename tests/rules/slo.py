"""Cases of the burn-rate alerts: each with both of its windows."""

from __future__ import annotations

from tests.rules.case import RESET, Case, Firing, Series
from tests.rules.latency import ITL, TTFT, itl, ttft, vllm

Phase = tuple[int, float, float]


def series(short: str, target: str, *phases: Phase | str) -> Series:
    """Phases are (steps, observations a step, those of them above the threshold)."""
    if short == "itl":
        return itl(vllm(target), ITL, *phases)
    return ttft(vllm(target), TTFT, *(p if isinstance(p, str) else (p[0], p[1], p[2], 0.0) for p in phases))


def burn(
    short: str,
    name: str,
    severity: str,
    factor: str,
    window: str,
    last: str,
    good: int,
    observed: float,
    bad: float,
    minute: int,
    value: str,
    mild: float,
    few: float,
    calm: int,
    step: int = 1,
) -> Case:
    """Return an alert's case, with four servers of which one is to be told of.

    After `good` steps of `step` minutes `bad` of `observed` are too slow, and at `minute` the alert fires.  `calm`
    steps are longer than the shorter window.  `mild` slow ones are below the limit, and above a tenth of it; `few`
    observations are too few to judge by.
    """
    long_name = {"itl": "InterTokenLatency", "ttft": "TimeToFirstToken"}[short]
    alert = f"LLM{long_name}BudgetBurn{name}"
    threshold, within, label = {"itl": ("0.1s", "1%", "0.1"), "ttft": ("1s", "5%", "1")}[short]
    labels = {"severity": severity, "target": "a", "backend": "vllm", "model": "m", "source": "traffic"}
    firing = Firing(
        labels | {"threshold": label},
        f"a: the {short.upper()} error budget burns {factor} times too fast",
        f"{value} of the {short.upper()} observations of model m on a (traffic) were above {threshold} over"
        f" {window}, and the last {last} are no better; {within} would be within the objective.",
    )
    interval = f"{step}m"
    steps = minute // step + 2 - good
    after = good * step
    after = good * step
    everybody = (
        series(short, "a", (good, observed, 0), (steps, observed, bad))
        # Healthy, before and after a restart.
        | series(short, "b", (good, observed, mild), RESET, (steps, observed, mild))
        # Bad for most of the longer window, and better again throughout the shorter one.
        | series(short, "c", (good - calm, observed, observed), (calm + steps, observed, mild))
        # All bad, and too few to judge by.
        | series(short, "d", (good + steps, few, few))
    )
    minutes = (after, after + step, after + 3 * step, minute - 1)
    at: list[tuple[int, list[Firing]]] = [(silence, []) for silence in sorted({*minutes})]
    return Case(alert, f"when {window} and {last} have burnt enough", everybody, [*at, (minute, [firing])], interval)


CASES: list[Case] = [
    # 9 slow of the 59 minutes between the hour's samples are more than 14.4 %, at minute 69; two minutes more.
    burn("itl", "Fast", "critical", "14.4", "1h", "5m", 60, 100, 100, 71, "18.64%", 5, 10, 6),
    # Half of them slow for 5 of the 41 five minutes that there are is more than 6 %, at minute 205.
    burn("itl", "Steady", "critical", "6", "6h", "30m", 36, 100, 50, 220, "9.091%", 2.5, 5, 7, 5),
    # Six of a hundred slow for 4 of the 20 half hours that there are is more than 1 %, at minute 600.
    burn("itl", "Slow", "warning", "1", "3d", "6h", 16, 100, 6, 660, "1.636%", 0.5, 10, 13, 30),
    # 43 of 59 minutes are more than 72 %.
    burn("ttft", "Fast", "critical", "14.4", "1h", "5m", 60, 5, 5, 105, "76.27%", 2, 0.5, 6),
    # 16 of 52 are more than 30 %.
    burn("ttft", "Steady", "critical", "6", "6h", "30m", 36, 5, 5, 275, "34.55%", 0.5, 0.5, 7, 5),
    # Two in five slow for 3 of 19 half hours are more than 5 %.
    burn("ttft", "Slow", "warning", "1", "3d", "6h", 16, 4, 1.6, 630, "9.524%", 0.1, 0.5, 13, 30),
]
