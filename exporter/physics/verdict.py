"""Which cause holds now: each has its test here, with the figures that causes.yml promises, in that file's order."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from exporter.physics.evidence import ENOUGH, Past, Stretch
from exporter.physics.view import Finding, View
from exporter.vitals import Quantile

FULL = 0.9
"""KV-cache usage from which requests that wait are taken to wait for blocks."""

OFTEN = 0.5
"""Share of the readings in which requests must wait, and of a TTFT that makes a phase its cause."""

SLOW_TTFT = 1.0
"""Seconds to the first token from which prefill is worth naming."""

SLOW_ITL = 0.05
"""Seconds a token from which decode is worth naming: 20 tokens/s, about twice as fast as people read."""

ROUGH = 0.1
"""Seconds of p99 of ITL from which a reader sees text stop."""

TAIL = 3.0
"""How many times the median a p99 must be, to be a tail."""

GROWN = 1.5
"""How many times the best of the last hour ITL, batch or context must be, to have grown."""

FAR_BELOW, REACHED = 0.5, 0.6
"""Shares of the decode ceiling: below the first it is missed, from the second on it is reached."""

SPECULATIVE = 1.05
"""Tokens of one reading of the weights from which speculative decoding is named."""

LOST = 0.01
"""Seconds a token above the ceiling's that make missing it worth naming; launches cost a few ms anywhere."""

WAITED = 0.1
"""Seconds in the queue, or in a load, that are worth naming; half a second of a probe, whose queue is an estimate."""

STUCK = 45.0
"""Seconds without any progress from which an engine with requests stands still."""

FRESH_LOAD = 120.0
"""Seconds after which a load is past."""

EASE = 0.75
"""What the thresholds are multiplied by for the cause that holds already, so that it does not flicker."""


Test = Callable[[View, float], tuple[str, ...]]
"""Returns the evidence for one cause, nothing if it does not hold; thresholds are multiplied by the second argument."""


def judge(view: View, held: str) -> Finding:
    """Return the first cause that holds; the one that `held` so far is left less easily than entered."""
    if not view.down:
        for cause, test in TESTS.items():
            if evidence := test(view, EASE if cause == held else 1.0):
                return Finding(cause, evidence)
    return Finding("unknown", _unknown(view))


def _stuck(view: View, ease: float) -> tuple[str, ...]:
    now, probe = view.now, view.recent_probe
    if now is not None and now.counts:
        progress = (now.prompt_tokens or 0) + (now.generated_tokens or 0) + (now.finished or 0)
        if now.seconds >= STUCK * ease and (now.lowest_in_flight or 0) > 0 and progress == 0:
            return (
                f"{now.lowest_in_flight:.0f} requests or more were running or waiting all the time",
                f"no token was read or made and no request finished in {now.seconds:.0f} s",
            )
    elif probe is not None and probe.stalled:
        return ("the last probe gave up waiting for its tokens",)
    return ()


def _kv_exhausted(view: View, ease: float) -> tuple[str, ...]:
    now = view.now
    if now is None or now.waiting_share < OFTEN * ease:
        return ()
    full = now.usage is not None and now.usage >= FULL * ease
    if not full and not now.preemptions:
        return ()
    evidence = [_waiting(now)]
    if now.usage is not None:
        evidence.append(f"KV-cache usage was up to {now.usage:.0%}")
    if now.preemptions:
        evidence.append(f"{now.preemptions:.0f} preemptions in {now.seconds:.0f} s")
    return tuple(evidence)


def _preempting(view: View, ease: float) -> tuple[str, ...]:
    now = view.now
    if now is None or not now.preemptions or now.preempting < 2 * ease:
        return ()
    usage = () if now.usage is None else (f"KV-cache usage was up to {now.usage:.0%}",)
    return (f"{now.preemptions:.0f} preemptions in {now.seconds:.0f} s", *usage, _waiting(now))


def _cold_load(view: View, ease: float) -> tuple[str, ...]:
    if view.loaded_for is not None and view.loaded_for <= FRESH_LOAD:
        return (f"the model came into memory {view.loaded_for:.0f} s ago",)
    probe = view.probe
    if probe is None or view.at - probe.at > FRESH_LOAD or not probe.reloaded:
        return ()
    load, ttft = probe.phases.get("load", 0.0), probe.ttft or 0.0
    if load < max(OFTEN * ttft, WAITED) * ease:
        return ()
    return (f"the last probe's model was loaded for {Quantile(load)} of its {Quantile(ttft)} to the first token",)


def _queueing(view: View, ease: float) -> tuple[str, ...]:
    now, probe = view.now, view.recent_probe
    if now is not None and now.waiting_share >= OFTEN * ease:
        ran = () if now.running is None else (f"{now.running:.1f} requests were running in the mean",)
        usage = () if now.usage is None else (f"KV-cache usage was at most {now.usage:.0%}",)
        return (_waiting(now), *ran, *usage)
    if now is not None and now.queue is not None and now.ttft is not None:
        if now.queue >= max(OFTEN * now.ttft.mean, WAITED) * ease:
            return (f"{Quantile(now.queue)} of {Quantile(now.ttft.mean)} to the first token were spent in the queue",)
    elif probe is not None and probe.ttft is not None:
        queue = probe.phases.get("queue", 0.0)
        if queue >= max(OFTEN * probe.ttft, 5 * WAITED) * ease:
            return (f"the last probe waited {Quantile(queue)} of its {Quantile(probe.ttft)} to the first token",)
    return ()


def _prefill_bound(view: View, ease: float) -> tuple[str, ...]:
    now, probe = view.now, view.recent_probe
    if now is not None and now.ttft is not None:
        ttft = now.ttft.mean
        prefill = now.prefill if now.prefill is not None else ttft - (now.queue or 0.0)
        if ttft < SLOW_TTFT * ease or prefill < OFTEN * ttft * ease:
            return ()
        evidence = [f"TTFT was {Quantile(ttft)} in the mean, {Quantile(prefill)} of it prefill"]
        if rate := now.rate(now.computed_tokens):
            evidence.append(f"{rate:.0f} prompt tokens/s were computed")
        return tuple(evidence)
    if probe is not None and probe.ttft is not None:
        prefill = probe.phases.get("prefill", 0.0)
        if probe.ttft >= SLOW_TTFT * ease and prefill >= OFTEN * probe.ttft * ease:
            return (f"the last probe's TTFT was {Quantile(probe.ttft)}, {Quantile(prefill)} of it prefill",)
    return ()


def _prefill_interference(view: View, ease: float) -> tuple[str, ...]:
    now = view.now
    if now is None or now.itl is None or now.itl.count < ENOUGH or now.preemptions:
        return ()
    p50, p99, rate = now.itl.p50.value, now.itl.p99.value, now.rate(now.computed_tokens)
    if not rate or p99 < ROUGH * ease or p99 < TAIL * ease * p50:
        return ()
    quiet = [past.p99 for past in view.past if past.p99 is not None and past.rate is not None and past.rate <= rate / 2]
    if not quiet or (calm := statistics.median(quiet)) > p99 / 2 / ease:
        return ()
    return (
        f"ITL was {now.itl.p50} at the median and {now.itl.p99} at p99, with {rate:.0f} prompt tokens/s",
        f"with half the prompt tokens or fewer its p99 was {Quantile(calm)}",
    )


def _grown(view: View, ease: float) -> tuple[float, float, tuple[str, ...]] | None:
    """Return how many times the batch and the context of the hour's best ITL there are now, if ITL has grown."""
    now = view.now
    if now is None or now.itl is None or now.itl.count < ENOUGH or not now.running:
        return None
    if now.itl.mean / now.per_step < SLOW_ITL * ease:
        return None
    known = ((past.itl, past) for past in view.past if past.itl is not None and past.running)
    itl, best = min(known, key=lambda pair: pair[0], default=(0.0, None))
    if best is None or not best.running or now.itl.mean < GROWN * ease * itl:
        return None
    contexts = now.context / best.context if now.context and best.context else 1.0

    def then(stretch: Stretch | Past) -> str:
        each = f" with {stretch.context:.0f} KV tokens each" if stretch.context else ""
        return f"{stretch.running:.1f} requests running{each}"

    evidence = (
        f"ITL was {Quantile(now.itl.mean)} in the mean, with {then(now)}",
        f"at its best in the last hour it was {Quantile(itl)}, with {then(best)}",
    )
    return now.running / best.running, contexts, evidence


def _batch_stretched(view: View, ease: float) -> tuple[str, ...]:
    grown = _grown(view, ease)
    return grown[2] if grown and grown[0] >= GROWN * ease and grown[0] >= grown[1] else ()


def _context_grown(view: View, ease: float) -> tuple[str, ...]:
    grown = _grown(view, ease)
    return grown[2] if grown and grown[1] >= GROWN * ease and grown[1] > grown[0] else ()


def _share(view: View) -> tuple[float, float, str] | None:
    """Return a lone stream's share of the decode ceiling, the seconds a token it loses to it, and the sentence.

    The ceiling is of readings of the weights; speculative decoding makes several tokens of one.
    """
    alone, most = view.alone, view.facts.ceiling
    if alone is None or most is None:
        return None
    readings = alone.rate / alone.per_reading
    share, lost = readings / most, 1 / alone.rate - 1 / (most * alone.per_reading)
    sentence = f"alone on the server a probe decoded {alone.rate:.3g} tokens/s"
    if alone.per_reading >= SPECULATIVE:
        sentence += (
            f", {alone.per_reading:.2g} of each reading of the weights: {readings:.3g} readings/s, {share:.0%} of the "
            f"ceiling of {most:.3g}"
        )
    else:
        sentence += f", {share:.0%} of the ceiling of {most:.3g}"
    return share, lost, sentence + excess(share, alone.per_reading)


def excess(share: float, per_reading: float) -> str:
    """Return what a share of the decode ceiling of more than all means, "" for one that is not."""
    if share <= 1:
        return ""
    uncounted = "" if per_reading >= SPECULATIVE else "speculative decoding, or "
    return f" - more than all means {uncounted}a device or weights other than configured"


def _decode_below_ceiling(view: View, ease: float) -> tuple[str, ...]:
    found = _share(view)
    if found is None:
        return ()
    share, lost, sentence = found
    return (sentence,) if share < (FAR_BELOW if ease == 1 else REACHED) and lost >= LOST * ease else ()


def _idle(view: View, ease: float) -> tuple[str, ...]:
    if view.empty:
        return ("no model is in memory",)
    if view.asleep:
        return ("the engine sleeps",)
    now = view.now
    if now is None or not now.counts or now.generated_tokens is None:
        return ()
    # One request may be a probe caught in the act.
    if (now.highest_in_flight or 0) > 1 or now.generated_tokens > view.probe_tokens:
        return ()
    probes = ", but for the probes'" if view.probe_tokens else ""
    return (f"no request ran or waited and no token was made in {now.seconds:.0f} s{probes}",)


def _decode_at_ceiling(view: View, ease: float) -> tuple[str, ...]:
    found = _share(view)
    if found is None or view.alone is None:
        return ()
    share, _, sentence = found
    slow = view.alone.rate <= 1 / SLOW_ITL / ease
    return (sentence,) if slow and share >= (REACHED if ease == 1 else FAR_BELOW) else ()


def _healthy(view: View, ease: float) -> tuple[str, ...]:
    now, probe = view.now, view.recent_probe
    evidence = []
    if now is not None and now.counts and (now.generated_tokens or now.finished):
        evidence.append(f"{now.generated_tokens:.0f} tokens were made in {now.seconds:.0f} s")
        evidence += [
            f"{name} was {latency.p50} at the median"
            for name, latency in (("TTFT", now.ttft), ("ITL", now.itl))
            if latency
        ]
    elif probe is not None and probe.ok:
        ttft = "" if probe.ttft is None else f", with a TTFT of {Quantile(probe.ttft)}"
        evidence.append(f"the last probe was good{ttft}")
    return tuple(evidence)


def _unknown(view: View) -> tuple[str, ...]:
    if view.down:
        return (f"the target gave nothing: {view.down}",)
    if view.now is None:
        return ("there are not two readings to compare yet",)
    return ("the engine counts no tokens, and there is no good probe",)


def _waiting(now: Stretch) -> str:
    return f"{now.waiting:.1f} requests waited in the mean, in {now.waiting_share:.0%} of the readings"


TESTS: dict[str, Test] = {
    "stuck": _stuck,
    "kv_exhausted": _kv_exhausted,
    "preempting": _preempting,
    "cold_load": _cold_load,
    "queueing": _queueing,
    "prefill_bound": _prefill_bound,
    "prefill_interference": _prefill_interference,
    "batch_stretched": _batch_stretched,
    "context_grown": _context_grown,
    "decode_below_ceiling": _decode_below_ceiling,
    "idle": _idle,
    "decode_at_ceiling": _decode_at_ceiling,
    "healthy": _healthy,
}
"""The tests in the order of causes.yml, whose last cause, unknown, is what is left."""
