"""Write the rule files and Grafana's copies of the main alerts."""

from __future__ import annotations

import argparse
from pathlib import Path

from prometheus.build.files import render
from prometheus.build.settings import Settings, override


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(prog="python -m prometheus.build", description=__doc__)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of settings.py")
    parser.add_argument("--out", type=Path, default=Path(), help="the project's root, or any folder to write under")
    args = parser.parse_args()
    try:
        settings = override(Settings(), args.set)
    except ValueError as error:
        parser.error(str(error))
    for path, text in render(settings).items():
        file = args.out / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


main()
