"""The package as people install it, in clean environments: pip, pipx, uvx; then the program without Docker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter import __version__
from tests.readme import ROOT
from tests.real.servers import free_port, get, process, wait_until

pytestmark = pytest.mark.timeout(900)

FIVE = {
    "vitals_time_to_first_token_seconds_count",
    "vitals_inter_token_latency_seconds_count",
    "vitals_requests_running",
    "vitals_requests_waiting",
    "vitals_kv_cache_usage_ratio",
}


@pytest.fixture(scope="module", autouse=True)
def _registry() -> None:
    if not os.environ.get("VITALS_REGISTRY"):
        pytest.skip("VITALS_REGISTRY is not set: packages cannot be installed")


def run(*command: str, cwd: Path = ROOT, **environ: str) -> str:
    env = {**os.environ, **environ}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and what it needs; its folder of programs."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    run(sys.executable, "-m", "venv", str(folder / "env"))
    programs = folder / "env/bin"
    run(str(programs / "pip"), "install", "--quiet", *map(str, folder.glob("*.whl")))
    return programs


def has_five(page: str, target: str) -> bool:
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    seen = {sample.name for sample in samples if sample.labels.get("target") == target
            and (sample.value > 0 or not sample.name.endswith("_count"))}  # fmt: skip
    return seen >= FIVE


def test_the_wheel_in_a_clean_environment_runs_the_demo(clean: Path, tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with process([str(clean / "llm-vitals"), "demo", "--listen", listen], tmp_path / "demo.log") as child:
        wait_until("five numbers", lambda: has_five(get(f"http://{listen}/metrics"), "demo-vllm"), 60, child)


def test_the_wheel_needs_nothing_that_it_does_not_name(clean: Path) -> None:
    run(str(clean / "pip"), "check")
    modules = "pkgutil.walk_packages(exporter.__path__, 'exporter.')"
    every = f"[importlib.import_module(m.name) for m in {modules} if not m.name.endswith('__main__')]"
    run(str(clean / "python"), "-W", "error", "-c", f"import importlib, pkgutil, exporter; {every}", cwd=clean)


def test_type_checkers_see_the_types_of_the_installed_package(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("from exporter.config import parse_listen\nparse_listen('a:1').port + ''\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(clean / "python"), "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert 'Unsupported operand types for + ("int" and "str")' in done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where pipx puts programs; it is first on PATH."""
    home = tmp_path_factory.mktemp("pipx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPX_HOME", str(home / "home"))
        patch.setenv("PIPX_BIN_DIR", str(home / "bin"))
        patch.setenv("PATH", f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield home / "bin"


@pytest.mark.readme("pipx install .", "llm-vitals", "llm-vitals check", "llm-vitals export my-monitoring")
def test_pipx_installs_the_program_and_it_serves(typed: str, programs: Path, tmp_path: Path) -> None:
    run(*typed.split())
    assert run("llm-vitals", "--version").strip() == f"llm-vitals {__version__}"
    run("llm-vitals", "export", "my-monitoring", cwd=tmp_path)
    assert (tmp_path / "my-monitoring/dashboards/json/five-key-metrics.json").is_file()
    listen = f"127.0.0.1:{free_port()}"
    with process(["llm-vitals"], tmp_path / "log", {"LLM_VITALS_LISTEN": listen}) as child:
        wait_until("it serves", lambda: "vitals_build_info" in get(f"http://{listen}/metrics"), 30, child)
        run("llm-vitals", "check", "--self", LLM_VITALS_LISTEN=listen)
        asked = {"VLLM_URL": "http://127.0.0.1:1"}
        said = subprocess.run(
            ["llm-vitals", "check"], env={**os.environ, **asked}, capture_output=True, text=True, timeout=30
        )
        assert said.returncode == 1 and said.stdout.startswith("FAIL vllm (http://127.0.0.1:1): connect")


@pytest.mark.readme("uvx --from . llm-vitals demo")
def test_uvx_runs_the_demo_without_installing_anything(typed: str, programs: Path, tmp_path: Path) -> None:
    command = [word if word != "." else str(ROOT) for word in typed.split()]
    listen = f"127.0.0.1:{free_port()}"
    with process(
        command, tmp_path / "log", {"LLM_VITALS_LISTEN": listen, "UV_CACHE_DIR": str(tmp_path / "uv")}
    ) as child:
        wait_until("five numbers", lambda: has_five(get(f"http://{listen}/metrics"), "demo-vllm"), 180, child)
