"""The commands that the README shows: each is run by the test that names it with the mark `readme`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Return what a reader would type: the lines of shell blocks, and the code in the last column of tables."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    cells = [row.rstrip("|").rpartition(" | ")[2] for row in README.splitlines() if row.startswith("| ")]
    typed += [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if re.match(PROGRAMS, code)]
    return list(dict.fromkeys(line.partition("  #")[0].strip() for line in typed if line.strip()))


PROGRAMS = r"(docker|llm-vitals|make|curl|pip|pipx|uvx|promtool|kill|cp|python3?) "
"""What makes code in a table a command, and not a name."""
