"""The verdict on real servers: a vLLM whose KV cache is full, and a llama.cpp alone against the machine's own memory.

VITALS_LLAMA: a command that serves a llama.cpp when a port is appended.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.real.conftest import Vllm, command
from tests.real.servers import free_port, get, process, wait_until
from tests.running import samples

pytestmark = pytest.mark.timeout(1200)

IN_TIME = 120.0
"""Seconds within which the verdict must name the cause."""

SCRAPE = 5.0
"""Seconds between two scrapes, as the shipped prometheus.yml has them."""

LOAD = ("--num-prompts", "2000", "--max-concurrency", "40", "--random-input-len", "200", "--random-output-len", "128")


def causes(exporter: str, target: str) -> set[str]:
    """Scrape the exporter and return the causes whose verdict is 1."""
    wanted = {"target": target}
    return {
        sample.labels["cause"]
        for sample in samples(get(f"{exporter}/metrics"))
        if sample.name == "vitals_verdict" and sample.value == 1 and wanted.items() <= sample.labels.items()
    }


def waiting(exporter: str) -> float:
    """Scrape the exporter and return how many requests wait."""
    found = samples(get(f"{exporter}/metrics"))
    return sum(s.value for s in found if s.name == "vitals_requests_waiting" and s.labels["target"] == "live")


def explained(*arguments: str) -> str:
    """Return what the command says."""
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "explain", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_vllm_with_a_small_kv_cache_under_load_is_kv_exhausted(
    vllm: Vllm, exporter: str, prometheus: str, logs: Path
) -> None:

    def named() -> bool:
        time.sleep(SCRAPE)
        return causes(exporter, "live") == {"kv_exhausted"}

    with process([*vllm.bench, *LOAD], logs / "verdict-bench.log") as bench:
        wait_until("requests wait", lambda: waiting(exporter) > 0, 300, bench)
        wait_until("the verdict is kv_exhausted", named, IN_TIME, bench)
        steady = []
        for _ in range(4):
            time.sleep(SCRAPE)
            steady.append(causes(exporter, "live"))
        words = explained("live", "--exporter", exporter, "--context", "300")
        past = explained("live", "--prometheus", prometheus, "--context", "300")
    sys.stdout.write(f"\n{words}")
    assert all(found == {"kv_exhausted"} for found in steady)
    for text in (words, past):
        assert "kv_exhausted: the KV cache is full" in text
        assert "change first\n    Give the cache more memory" in text


def memory_bandwidth() -> float:
    """Return bytes/s at which one thread reads memory far beyond its caches: a search for what is not there."""
    block = b"\x02" * (512 * 2**20)  # written, so that it is not one page of zeros many times over
    best = 0.0
    for _ in range(8):
        start = time.perf_counter()
        assert block.find(b"\x01") == -1
        best = max(best, len(block) / (time.perf_counter() - start))
    return best


def test_a_real_llama_cpp_alone_reaches_a_plausible_share_of_the_machines_own_bandwidth(logs: Path) -> None:
    serve = command("VITALS_LLAMA")
    bandwidth = memory_bandwidth()
    server, port = free_port(), free_port()
    url, exporter = f"http://127.0.0.1:{server}", f"http://127.0.0.1:{port}"
    config = logs / "verdict-llama.yml"
    target = {
        "name": "llama",
        "url": url,
        "backend": "openai",
        "memory_bandwidth_gb_s": bandwidth / 1e9,
        "probe": {"interval": "2s", "max_share": 1, "kinds": ["small"], "max_tokens": 64},
    }
    config.write_text(yaml.safe_dump({"targets": [target]}))
    arguments = [sys.executable, "-m", "exporter", "--config", str(config), "--listen", f"127.0.0.1:{port}"]
    # One thread, as the bandwidth is one thread's: threads that wait for each other say little on a busy machine.
    with process([*serve, str(server), "--threads", "1"], logs / "verdict-llama.log") as llama:
        wait_until("llama.cpp is ready", lambda: "ok" in get(f"{url}/health"), 120, llama)
        with process(arguments, logs / "verdict-exporter.log") as child:
            found: dict[str, float] = {}

            def probed() -> bool:
                found.update({sample.name: sample.value for sample in samples(get(f"{exporter}/metrics"))})
                return "vitals_probe_alone_decode_tokens_per_second" in found

            wait_until("a probe was alone", probed, IN_TIME, child)
            words = explained("llama", "--exporter", exporter)
    ceiling, alone = (found[f"vitals_{name}_tokens_per_second"] for name in ("decode_ceiling", "probe_alone_decode"))
    share = alone / ceiling
    sys.stdout.write(
        f"\nmemory read at {bandwidth / 1e9:.1f} GB/s, weights {found['vitals_model_weight_bytes'] / 1e6:.0f} MB: "
        f"ceiling {ceiling:.1f} tokens/s, alone {alone:.1f} tokens/s, achieved {share:.0%}\n{words}"
    )
    assert ceiling == pytest.approx(bandwidth / found["vitals_model_weight_bytes"], rel=1e-6)
    assert 0.05 < share < 1.2
    assert f"{share:.0%} of that" in words or "alone, a probe reached" in words
