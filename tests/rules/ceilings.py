"""Tests of the shares of what memory bandwidth allows, against values computed by hand."""

from __future__ import annotations

from typing import Any

from tests.rules.recording import LEVEL, A, expect, test

BANDWIDTH = 'vitals_memory_bandwidth_bytes_per_second{target="a",backend="vllm",memory="device"}'

TESTS: list[dict[str, Any]] = [
    test(
        "the achieved share of the ceiling is that of lone probes, whatever a busy batch's do",
        {
            f"vitals_probe_alone_decode_tokens_per_second{A}": "30x20",
            f'vitals_probe_decode_tokens_per_second{A[:-1]},prompt="small"}}': "7x20",
            f"vitals_decode_ceiling_tokens_per_second{A}": "37.5x20",
        },
        expect(10, f"{LEVEL}vitals_decode_ceiling:achieved_ratio", 0.8),
    ),
    test(
        "of two devices together each reads its own bytes at its own bandwidth, the busier engine's counting",
        {
            # 0.9 and 1.8 TB a minute are 15 and 30 GB/s, of 60 GB/s a device.
            f'vitals_estimated_read_bytes_per_gpu_total{A[:-1]},engine="0"}}': "0+9e11x20",
            f'vitals_estimated_read_bytes_per_gpu_total{A[:-1]},engine="1"}}': "0+1.8e12x20",
            BANDWIDTH: "120e9x20",
            'vitals_devices{target="a",backend="vllm"}': "2x20",
        },
        expect(10, f"{LEVEL}vitals_memory_bandwidth:used_ratio_rate5m", 0.5),
    ),
    test(
        "an engine that does not count its bytes has no share",
        {
            f'vitals_estimated_read_bytes_per_gpu_total{A[:-1]},engine="0"}}': "0x20",
            BANDWIDTH: "120e9x20",
            'vitals_devices{target="a",backend="vllm"}': "2x20",
        },
        (f"{LEVEL}vitals_memory_bandwidth:used_ratio_rate5m", 10, {}),
    ),
]
