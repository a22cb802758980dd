"""PromQL that the rules share: what may be added up, averaged or compared is decided here."""

from __future__ import annotations

from exporter.catalogue import bound_text

LABELS = "target, backend, model"
"""What one series of a rule is about.  Data-parallel engines (`engine`) are added up, or the fullest is taken."""

LEVEL = "target_model"
"""The level in `level:metric:operation`: those labels, `backend` being implied by the target."""

ENGINE = f"{LABELS}, engine"


def rate(series: str, window: str, by: str = LABELS) -> str:
    """Return the sum of a counter's rates per second by `by`; each is taken before adding, so that resets are seen."""
    return f"sum by ({by}) (rate({series}[{window}]))"


def increase(series: str, window: str, by: str = LABELS) -> str:
    """Return by how much a counter grew in the window, summed by `by`."""
    return f"sum by ({by}) (increase({series}[{window}]))"


MATCHERS = {"vitals_probe_time_to_first_token_seconds": 'prompt!="cached"'}
"""What a family is narrowed to: a prompt that the prefix cache answers is no first token as users know it."""


def part(family: str, suffix: str, *matchers: str) -> str:
    """Return the selector of a histogram's `bucket`, `sum` or `count`."""
    inside = ",".join(filter(None, (MATCHERS.get(family), *matchers)))
    return f"{family}_{suffix}" + (f"{{{inside}}}" if inside else "")


def quantile(q: float, family: str, window: str) -> str:
    """Return a histogram's quantile in its unit; without an observation there is none, and no NaN."""
    return f"histogram_quantile({q:g}, {rate(part(family, 'bucket'), window, f'le, {LABELS}')}) >= 0"


def mean(family: str, window: str) -> str:
    """Return a histogram's mean, exact whatever its buckets."""
    return f"{rate(part(family, 'sum'), window)} / ({rate(part(family, 'count'), window)} > 0)"


def observed(family: str, window: str) -> str:
    """Return the number of a histogram's observations in the window; absent where there were none."""
    return f"{increase(part(family, 'count'), window)} > 0"


def share_above(family: str, bound: float, window: str) -> str:
    """Return the share of observations above a bucket's bound, exact; absent where the histogram has no such bound."""
    within = rate(part(family, "bucket", f'le="{bound_text(bound)}"'), window)
    return f"1 - {within} / ({rate(part(family, 'count'), window)} > 0)"


def headline(traffic: str, probe: str, ignoring: str = "source") -> str:
    """Return real traffic where there is any, else the probes; `source` says which."""
    named = [
        f'label_replace({expr}, "source", "{source}", "", "")'
        for source, expr in (("traffic", traffic), ("probe", probe))
    ]
    return f"\nor ignoring ({ignoring})\n".join(named)
