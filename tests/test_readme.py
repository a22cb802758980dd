"""README.md: every command is run by a test, every link leads somewhere, and it comes in the order promised."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.readme import README, ROOT, commands


def marked() -> Iterator[str]:
    """Yield the commands that tests say they run."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "readme":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: a command is written out where it is run"
                    yield str(argument.value)


def test_every_command_is_run_by_a_test() -> None:
    assert set(commands()) == set(marked())


DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_within_the_project_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", document.read_text(encoding="utf-8")):
        path, anchor = target
        if path.startswith(("http:", "https:", "mailto:")):
            continue
        file = document.parent / path if path else document
        assert file.exists(), path
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), anchor


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_screen_is_a_sentence_a_picture_and_a_command() -> None:
    title, sentence, picture, command = README.split("\n\n")[:4]
    assert title.startswith("# ") and picture.startswith("![")
    assert sentence.count(". ") == 0
    assert README.index("docker compose up") < README.index("make test") < README.index("## Connect vLLM")
    assert command.startswith("```sh\ndocker compose up")


def test_the_sections_come_in_the_order_a_newcomer_needs_them() -> None:
    order = ["What you will see", "Test it", "Connect vLLM", "Connect Ollama", "Without Docker", "Alert on p99"]
    order += ["What the numbers mean", "Troubleshooting", "How it compares"]
    places = [README.index(f"## {heading}") for heading in order]
    assert places == sorted(places)


@pytest.mark.readme("make test")
def test_the_gate_runs_the_command_for_tests(typed: str) -> None:
    assert re.search(rf"^{typed}$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.readme("make rules")
def test_the_command_for_thresholds_writes_the_rules(typed: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "prometheus/build", tmp_path / "prometheus/build")
    # An environment that is set up already: this one.
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/installed").touch()
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    settings = tmp_path / "prometheus/build/settings.py"
    changed, found = re.subn(
        r"^    itl_p99: float = .*$", "    itl_p99: float = 0.05", settings.read_text(), flags=re.M
    )
    assert found == 1
    settings.write_text(changed)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(filter(None, sys.path))}
    subprocess.run(typed.split(), cwd=tmp_path, env=environ, check=True, timeout=60)
    assert "p99_rate5m >= 0.05" in (tmp_path / "prometheus/rules/latency.yml").read_text()
