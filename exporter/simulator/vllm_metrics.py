"""vLLM's /metrics page, fed by the simulated engine's steps and by requests that end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from exporter.simulator import vllm_families
from exporter.simulator.engine import Step
from exporter.simulator.exposition import Child, Kind, Metric
from exporter.simulator.truth import Record
from exporter.simulator.vllm_families import Family

_HIGH_RESOLUTION = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """What a page depends on: `version` such as 0.32.0, or 0.8.5-v0 for the older engine core.

    `cache_config` gives the labels of `cache_config_info`; `speculative` the tokens drafted a step, 0 for none.
    """

    model_name: str
    version: str
    max_model_len: int
    cache_config: Mapping[str, str]
    speculative: int = 0


class VllmMetrics:
    """The instruments of one vLLM process; a restarted one begins again at zero.  `now` returns the Unix time."""

    def __init__(self, page: Page, now: Callable[[], float]) -> None:
        number, _, core = page.version.partition("-")
        self._v0 = core == "v0"
        self._version = vllm_families.parse(number)
        self._now = None if self._v0 else now  # the older core switched the `_created` series off
        self._block_size = float(page.cache_config["block_size"])
        self._process = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self._process)
        self._metrics: list[Metric] = []
        self._children: defaultdict[tuple[str, str], list[Child]] = defaultdict(list)
        self._totals = [0, 0]
        self._idle = True
        model = {"model_name": page.model_name}
        engine = {} if self._v0 or self._version < (0, 8, 3) else {"engine": "0"}
        for family in vllm_families.FAMILIES:
            optional = family.name.startswith("spec_decode_")
            if family.shown_in(self._version, self._v0) and (page.speculative or not optional):
                self._add(family, page, model | engine if family.engine else model)
        if self._v0 or self._version >= (0, 8, 0):
            config = self._new("vllm:cache_config_info", "gauge", "Settings of the cache.")
            config.labels(dict(page.cache_config) | engine).set(1)
        self._http = self._new("http_requests", "counter", "Requests.")
        self._http_in = self._new("http_request_size_bytes", "summary", "Bytes received.")
        self._http_out = self._new("http_response_size_bytes", "summary", "Bytes sent.")
        fine = self._new("http_request_duration_highr_seconds", "histogram", "Seconds.", _HIGH_RESOLUTION)
        self._http_fine = fine.labels({})
        self._http_coarse = self._new("http_request_duration_seconds", "histogram", "Seconds.", (0.1, 0.5, 1))
        self._set("sleep_state", 1, "awake")
        self._set("off", -1)

    def _new(self, name: str, kind: Kind, text: str, bounds: tuple[float, ...] = ()) -> Metric:
        self._metrics.append(Metric(name, kind, text, self._now, bounds))
        return self._metrics[-1]

    def _add(self, family: Family, page: Page, labels: Mapping[str, str]) -> None:
        bounds: tuple[float, ...] = ()
        if family.type == "histogram":
            bounds = vllm_families.bounds(family.bounds, self._version, self._v0, page.max_model_len)
        metric = self._new(f"vllm:{family.name}", family.type, family.help, bounds)
        values = vllm_families.reasons(family, self._version) if family.label else ("",)
        if family.source == "accepted_at":
            values = tuple(str(position) for position in range(page.speculative))
        for value in values:
            own = {family.label: value} if family.label else {}
            self._children[family.source, value].append(metric.labels({**labels, **own}))

    def on_step(self, step: Step) -> None:
        """Count what a step brought and take over the state it left."""
        self._set("running", step.running)
        self._set("waiting", step.waiting)
        self._set("waiting_by_reason", step.waiting, "capacity")
        self._set("usage", step.usage)
        self._count_cache(step.queried_tokens, step.hit_tokens)
        self._count("preempted", step.preempted)
        if step.cost is not None:
            self._count("flops", step.cost.flops)
            self._count("read_bytes", step.cost.read_bytes)
            self._count("write_bytes", step.cost.write_bytes)
            self._idle = False
        if step.drafts:
            self._count("drafts", step.drafts)
            self._count("draft_tokens", step.draft_tokens)
            self._count("accepted", len(step.accepted_at))
            for position in step.accepted_at:
                self._count("accepted_at", 1, str(position))
        generated = prompt = 0
        for output in step.outputs:
            generated += output.tokens
            if output.gap is None:
                prompt += output.sequence.record.prompt_tokens
                self._count_prompt(output.sequence.record)
            else:
                self._observe("itl", output.gap)
        if generated:
            self._count("generation", generated)
            self._count("all_tokens", generated + prompt)
            self._set("prompt_rate", prompt / step.duration)
            self._set("output_rate", generated / step.duration)
            self._observe("iteration", generated + prompt)

    def on_end(self, record: Record) -> None:
        """Count a request that has ended; aborted and failed ones leave no latencies."""
        if record.reason is None or record.scheduled is None or record.reason in ("abort", "error"):
            self._count("success", 1, record.reason or "abort")
            return
        self._count("success", 1, record.reason)
        for source, value in (
            ("prompt_length", record.prompt_tokens),
            ("output_length", record.output_tokens),
            ("computed_length", record.prompt_tokens - record.cached_tokens),
            ("max_tokens", record.max_tokens),
            ("n", 1),
            ("tpot", record.tpot),
            ("e2e", record.e2e),
            ("queue", record.queue),
            ("inference", record.prefill + record.decode),
            ("inference_ms", 1000 * (record.prefill + record.decode)),
            ("prefill", record.prefill),
            ("decode", record.decode),
            ("preemptions", record.preemptions),
        ):
            self._observe(source, value)

    def on_http(self, method: str, handler: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count one HTTP exchange of the API."""
        where = {"handler": handler}
        self._http.labels(where | {"method": method, "status": f"{status // 100}xx"}).add(1)
        self._http_in.labels(where).observe(received)
        self._http_out.labels(where).observe(sent)
        self._http_fine.observe(seconds)
        self._http_coarse.labels(where | {"method": method}).observe(seconds)

    def render(self) -> bytes:
        """Return the page; the older core names its families without samples until the first request."""
        samples = not (self._v0 and self._idle)
        own = "".join(metric.render(samples) for metric in self._metrics)
        return generate_latest(self._process) + own.encode()

    def _count_prompt(self, record: Record) -> None:
        computed = record.prompt_tokens - record.cached_tokens
        self._count("prompt", record.prompt_tokens)
        self._count("prompt_by_source", computed, "local_compute")
        self._count("prompt_by_source", record.cached_tokens, "local_cache_hit")
        self._count("cached", record.cached_tokens)
        self._observe("ttft", record.ttft)

    def _count_cache(self, queried: int, hit: int) -> None:
        if not queried:
            return
        self._count("queries", queried)
        self._count("hits", hit)
        self._count("cached_by_source", hit, "device")
        unit = self._block_size if self._version < (0, 9, 0) else 1.0  # blocks up to 0.8.5, then tokens
        self._count("gpu_queries", queried // unit)
        self._count("gpu_hits", hit // unit)
        self._totals[0] += queried
        self._totals[1] += hit
        self._set("hit_rate", self._totals[1] / self._totals[0])

    def _count(self, source: str, amount: float, value: str = "") -> None:
        for child in self._children.get((source, value), ()):
            child.add(amount)

    def _set(self, source: str, amount: float, value: str = "") -> None:
        for child in self._children.get((source, value), ()):
            child.set(amount)

    def _observe(self, source: str, amount: float) -> None:
        for child in self._children.get((source, ""), ()):
            child.observe(amount)
