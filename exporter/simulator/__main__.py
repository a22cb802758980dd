"""`python -m exporter.simulator` runs the simulated servers."""

from __future__ import annotations

import argparse
import asyncio

from exporter import logs
from exporter.simulator import simulate


def main() -> int:
    """Read the command line and serve; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m exporter.simulator", description=simulate.__doc__)
    simulate.add_arguments(parser)
    args = parser.parse_args()
    logs.set_up("info", "text")
    return asyncio.run(simulate.run(args))


if __name__ == "__main__":
    raise SystemExit(main())
