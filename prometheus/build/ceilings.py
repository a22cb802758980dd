"""Shares of what memory bandwidth allows: of a lone stream's decode rate, and of the bytes that the engine reads."""

from __future__ import annotations

from prometheus.build.promql import LABELS, LEVEL
from prometheus.build.rule import Group, Record
from prometheus.build.settings import Settings


def group(s: Settings) -> Group:
    """Return the rules of the ceilings; a busy batch has no part in the first, as only lone probes count."""
    alone = f"max by ({LABELS}) (vitals_probe_alone_decode_tokens_per_second)"
    read = f"max by ({LABELS}) (rate(vitals_estimated_read_bytes_per_gpu_total[{s.window}])) > 0"
    # The engine counts the bytes of one device; the bandwidth is that of all that hold the model together.
    one = 'vitals_memory_bandwidth_bytes_per_second{memory="device"} / on (target) group_left vitals_devices'
    return Group(
        "ceilings",
        (
            Record(
                f"{LEVEL}:vitals_decode_ceiling:achieved_ratio",
                f"{alone}\n/ max by ({LABELS}) (vitals_decode_ceiling_tokens_per_second)",
            ),
            Record(
                f"{LEVEL}:vitals_memory_bandwidth:used_ratio_rate{s.window}",
                f"({read})\n/ on (target, backend) group_left max by (target, backend) ({one})",
            ),
        ),
        (),
    )
