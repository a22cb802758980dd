"""Probes of a real vLLM against vLLM's own load generator, both with one request of 200 tokens at a time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.conftest import Vllm

pytestmark = pytest.mark.timeout(1800)

SHAPE = ["--num-prompts", "8", "--max-concurrency", "1", "--random-input-len", "200", "--random-output-len", "32"]
ATTEMPTS = 6
"""Another program, or another machine of the same host, that slows one of the two is not the probes' fault."""


def by_probes(url: str) -> dict[str, float]:
    """Return the median TTFT and ITL in seconds that `llm-vitals probe` sees."""
    arguments = [sys.executable, "-m", "exporter", "probe", url, "--json", "-n", "8", "--max-tokens", "32"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["engine"] == "vllm"
    small = answer["prompts"]["small"]
    assert small["prompt_tokens"] == pytest.approx(200, rel=0.1)
    assert small["output_tokens"] == 32
    return {"TTFT": small["ttft_p50_seconds"], "ITL": small["itl_p50_seconds"]}


def by_bench(vllm: Vllm, log: Path) -> dict[str, float]:
    """Return the same as vLLM's load generator sees them."""
    done = subprocess.run([*vllm.bench, *SHAPE], capture_output=True, text=True, timeout=500, check=False)
    log.write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(re.findall(r"Median (TTFT|ITL) \(ms\):\s+([\d.]+)", done.stdout))
    return {name: float(found[name]) / 1000 for name in ("TTFT", "ITL")}


def test_ttft_and_itl_agree_with_vllms_own_load_generator(
    vllm: Vllm, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off: list[str] = []
    for attempt in range(ATTEMPTS):
        ours, theirs = by_probes(vllm.url), by_bench(vllm, logs / f"bench-{attempt}.log")
        with capsys.disabled():
            for name, seconds in ours.items():
                both = f"probe {seconds * 1000:.2f} ms, vllm bench {theirs[name] * 1000:.2f} ms"
                sys.stdout.write(f"\n{name} median: {both}")
        off = [name for name in ours if abs(ours[name] - theirs[name]) > max(0.1 * theirs[name], 0.002)]
        if not off:
            return
    raise AssertionError(f"{off} differ by more than 10 % and 2 ms in each of {ATTEMPTS} attempts")
