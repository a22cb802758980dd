"""What all tests share."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest

from exporter.backends.table import PAGES

FIXTURES = Path(__file__).parent / "fixtures"
ENGINE_PAGES = [page for engine in PAGES for page in sorted((FIXTURES / engine).glob("*.prom"))]
"""The metrics pages of engines; the folder has the engine's name."""


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture(autouse=True)
def logging_as_python_has_it() -> None:
    """Undo what a command that an earlier test ran in this process has set up."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler) is logging.StreamHandler]:
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("exporter").setLevel(logging.NOTSET)


@pytest.fixture
def commands(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The commands of README.md that the test runs: those in its mark `readme`."""
    mark = request.node.get_closest_marker("readme")
    assert mark is not None
    return tuple(map(str, mark.args))


@pytest.fixture
def typed(commands: tuple[str, ...]) -> str:
    """The first of them."""
    return commands[0]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Turn a skip into a failure where VITALS_NO_SKIP is set; VITALS_MAY_SKIP is a pattern of reasons that hold."""
    outcome = yield
    report = outcome.get_result()
    allowed = os.environ.get("VITALS_MAY_SKIP")
    if allowed and re.search(allowed, str(report.longrepr)):
        return
    if report.skipped and os.environ.get("VITALS_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but VITALS_NO_SKIP is set: {report.longrepr}"
