"""Arithmetic on memory bandwidth: how fast one stream can decode at most, and where a decode step's time goes."""

from __future__ import annotations


def decode_ceiling(*reads: tuple[float, float]) -> float:
    """Return the most tokens/s that one stream can get, of the (bytes read per token, bytes/s) of each memory.

    With one memory that is bandwidth / bytes.  Layers in two memories are read one after the other, so the times
    add up.
    """
    return 1 / sum(size / bandwidth for size, bandwidth in reads)


def kv_share(kv_bytes: float, read_bytes: float) -> float:
    """Return the share, 0 to 1, of the bytes of a decode step that are KV and not weights."""
    return kv_bytes / (kv_bytes + read_bytes)
