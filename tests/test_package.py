"""The wheel and the source archive: what is in them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from exporter import __version__
from exporter.export import BUNDLE
from tests.readme import ROOT


def build(source: Path, kind: str, to: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    [built] = to.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel made from the unpacked source archive, as an installer makes it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return build(folder / f"llm_vitals-{__version__}", "wheel", tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def bundled(root: Path, prefix: str = "") -> dict[str, bytes]:
    paths = [
        path for name in BUNDLE for path in ([root / name] if (root / name).is_file() else (root / name).rglob("*"))
    ]
    return {prefix + str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def test_the_wheel_holds_the_program_its_data_and_its_types(wheel: Path) -> None:
    found = contents(wheel)
    expected = bundled(ROOT, "exporter/export/bundle/")
    assert expected
    assert {name: found.get(name) for name in expected} == expected
    code = {str(file.relative_to(ROOT)) for file in (ROOT / "exporter").rglob("*") if "__pycache__" not in file.parts
            and file.is_file()}  # fmt: skip
    assert code <= found.keys()
    assert "exporter/py.typed" in found


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    about = f"llm_vitals-{__version__}.dist-info/"
    assert {name.split("/")[0] + "/" for name in contents(wheel)} == {"exporter/", about}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    found = contents(wheel)
    about = f"llm_vitals-{__version__}.dist-info"
    metadata = found[f"{about}/METADATA"].decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert found[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert found[f"{about}/entry_points.txt"].decode() == "[console_scripts]\nllm-vitals = exporter.cli:main\n"
