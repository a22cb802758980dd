"""Runs one benchmark by name."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main() -> int:
    names = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: python -m bench {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"bench.{sys.argv[1]}").main(sys.argv[2:]))


if __name__ == "__main__":
    raise SystemExit(main())
