"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Turn a skip into a failure where VITALS_NO_SKIP says that everything needed is there."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("VITALS_NO_SKIP") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but VITALS_NO_SKIP is set: {report.longrepr}"
