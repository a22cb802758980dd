"""`llm-vitals export DIR`: what people who run their own Prometheus and Grafana need, written out as files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from exporter.export import kubernetes, systemd

BUNDLE = (
    "dashboards/json",
    "dashboards/provisioning",
    "prometheus/prometheus.yml",
    "prometheus/alertmanager.yml",
    "prometheus/rules",
    "docs/runbooks.md",
    "docs/causes.md",
    "vitals.example.yml",
)
"""What the package holds besides its code, as paths in the project; pyproject.toml puts them into the wheel."""

IN_COMPOSE = re.compile(r"\b(exporter|prometheus|alertmanager):(?=\d)")
"""Hosts that only Compose's network knows."""

DASHBOARDS_IN_COMPOSE = "/etc/llm-vitals/dashboards"
"""Where Grafana's container finds the dashboards."""


class ExportError(Exception):
    """A file that cannot be written: one line with the remedy."""


def export(directory: Path) -> None:
    """Write everything into the directory and print what each part is for; raise ExportError.

    A file that is there already and differs is not overwritten, and then nothing is written at all.
    """
    directory = directory.resolve()
    files = dict(_files(directory))
    try:
        for path, text in files.items():
            if path.exists() and path.read_text(encoding="utf-8") != text:
                raise ExportError(f"{path} is there already and differs; give another folder")
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{error.filename}: {error.strerror}; give a folder that can be written to") from None
    print(f"{len(files)} files in {directory}:{_GUIDE}")
    if systemd.hidden(Path(sys.prefix)):
        print(_HIDDEN)


_GUIDE = """
  vitals.yml                 the exporter's configuration: llm-vitals --config vitals.yml
  prometheus/rules/          for rule_files of your Prometheus
  prometheus/prometheus.yml  a whole configuration of Prometheus, if you have none; and Alertmanager's beside it.
                             In your own keep the job's name, llm-vitals: rules and dashboards know the exporter by it
  docs/                      where alerts lead to, if Prometheus has --web.user-assets=docs and is at 127.0.0.1:9090;
                             else replace that address in the rules
  dashboards/json/           dashboards to import, or dashboards/provisioning/ for Grafana's provisioning
  systemd/                   a unit for /etc/systemd/system
  kubernetes/                manifests for kubectl apply; the top of each says what it needs"""


_HIDDEN = """\
The systemd unit cannot see a home directory, where this llm-vitals is: install it elsewhere, and export with that one:
  sudo python3 -m venv /opt/llm-vitals && sudo /opt/llm-vitals/bin/pip install ."""


def _files(directory: Path) -> Iterator[tuple[Path, str]]:
    bundled = dict(_bundled())
    for name, text in bundled.items():
        if name == "vitals.example.yml":
            yield directory / "vitals.yml", text
        elif name == "prometheus/prometheus.yml":
            yield directory / name, _prometheus(text)
        elif name.endswith(".yml") and not name.startswith("prometheus/rules/"):
            here = IN_COMPOSE.sub("127.0.0.1:", text)
            yield directory / name, here.replace(DASHBOARDS_IN_COMPOSE, str(directory / "dashboards/json"))
        else:
            yield directory / name, text
    yield directory / "systemd/llm-vitals.service", systemd.unit(Path(sys.prefix))
    dashboards = {Path(name).stem: text for name, text in bundled.items() if name.startswith("dashboards/json/")}
    rules = {Path(name).stem: text for name, text in bundled.items() if name.startswith("prometheus/rules/")}
    for name, text in kubernetes.manifests(dashboards, rules).items():
        yield directory / "kubernetes" / name, text


def _prometheus(text: str) -> str:
    """Return the configuration of Compose's Prometheus for one on this machine, where no name leads to the others."""
    document = yaml.safe_load(IN_COMPOSE.sub("127.0.0.1:", text))
    for job in document["scrape_configs"]:
        for key in ("dns_sd_configs", "relabel_configs", "metric_relabel_configs"):
            job.pop(key, None)
    for manager in document["alerting"]["alertmanagers"]:
        ports = [found["port"] for found in manager.pop("dns_sd_configs")]
        manager["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    return yaml.safe_dump(document, sort_keys=False)


def _bundled() -> Iterator[tuple[str, str]]:
    """Yield path in the project and text of each bundled file, from the installed package or from a checkout."""
    installed = Path(__file__).parent / "bundle"
    root = installed if installed.is_dir() else Path(__file__).parent.parent.parent
    for name in BUNDLE:
        path = root / name
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            yield file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
