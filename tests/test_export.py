"""`llm-vitals export`: what it writes is accepted by those whom it is for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.cli import main
from exporter.config import load
from exporter.export import BUNDLE
from tests.program import COMMAND
from tests.readme import ROOT

Document = dict[str, Any]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("export") / "new" / "folder"
    assert main(["export", str(directory)]) == 0
    return directory


def documents(folder: Path) -> list[Document]:
    return [document for file in sorted(folder.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())]


@pytest.fixture(scope="module")
def manifests(exported: Path) -> dict[str, Document]:
    """The Kubernetes objects by kind, without the dashboards."""
    found = {item["kind"]: item for item in documents(exported / "kubernetes") if not is_dashboard(item)}
    assert found.keys() == {"ConfigMap", "Deployment", "Service", "ServiceMonitor", "PrometheusRule"}
    return found


def is_dashboard(document: Document) -> bool:
    return "grafana_dashboard" in document["metadata"]["labels"]


def test_dashboards_and_rules_are_those_of_the_project(exported: Path) -> None:
    for folder in ("dashboards/json", "prometheus/rules"):
        ours = {file.name: file.read_bytes() for file in (ROOT / folder).iterdir()}
        assert ours
        assert {file.name: file.read_bytes() for file in (exported / folder).iterdir()} == ours


def test_the_configuration_is_one_that_loads(exported: Path) -> None:
    assert load(exported / "vitals.yml", {}, in_container=False).targets


def test_no_file_names_a_host_that_only_compose_knows(exported: Path) -> None:
    for file in (*(exported / "prometheus").glob("*.yml"), *(exported / "dashboards/provisioning").rglob("*.yml")):
        assert not re.search(r"\b(exporter|prometheus|alertmanager|proxy|demo):\d", file.read_text()), file
    prometheus = yaml.safe_load((exported / "prometheus/prometheus.yml").read_text())
    jobs = {job.pop("job_name"): job for job in prometheus["scrape_configs"]}
    assert jobs["llm-vitals"] == {"static_configs": [{"targets": ["127.0.0.1:10434"]}]}
    assert "dns_sd_configs" not in str(prometheus)
    assert prometheus["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]


def test_grafanas_provisioning_finds_the_exported_dashboards(exported: Path) -> None:
    file = exported / "dashboards/provisioning/dashboards/llm-vitals.yml"
    [provider] = yaml.safe_load(file.read_text())["providers"]
    assert Path(provider["options"]["path"]) == exported / "dashboards/json"


def test_prometheus_accepts_what_is_exported(exported: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    command = [promtool, "check", "config", str(exported / "prometheus/prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_is_there_already_is_kept(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path)]) == 0
    assert main(["export", str(tmp_path)]) == 0, "the same again changes nothing"
    (tmp_path / "vitals.yml").write_text("mine")
    shutil.rmtree(tmp_path / "prometheus")
    capsys.readouterr()
    assert main(["export", str(tmp_path)]) == 1
    problem = f"llm-vitals: {tmp_path}/vitals.yml is there already and differs; give another folder\n"
    assert capsys.readouterr().err == problem
    assert (tmp_path / "vitals.yml").read_text() == "mine"
    assert not (tmp_path / "prometheus").exists(), "nothing is written by halves"


def test_a_folder_that_cannot_be_made_is_a_line_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["export", str(tmp_path / "file" / "x")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("llm-vitals: ") and "give a folder that can be written to" in error
    assert error.count("\n") == 1


def test_the_package_and_the_source_archive_hold_what_is_exported() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {name: f"exporter/export/bundle/{name}" for name in BUNDLE}
    assert set(BUNDLE) <= set(build["sdist"]["include"])
    image = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in BUNDLE} <= set(image)


def test_systemd_accepts_the_unit(exported: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on PATH")
    # It looks whether the program is there, and the tests do not run from an installed one.
    text = (exported / "systemd/llm-vitals.service").read_text()
    text, found = re.subn(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    assert found == 1
    unit = tmp_path / "llm-vitals.service"
    unit.write_text(text)
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(text.replace("ProtectHome=", "ProtectHouse="))
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    assert "ProtectHouse" in done.stderr, "a mistake would be seen"


@pytest.mark.parametrize(
    ("prefix", "hidden"),
    [("/home/a/.local/share/pipx/venvs/llm-vitals", True), ("/root/.cache/uv/x", True), ("/opt/llm-vitals", False)],
)
def test_a_program_that_the_unit_cannot_see_is_told(
    prefix: str, hidden: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.prefix", prefix)
    monkeypatch.setenv("HOME", "/")  # A container's user without a home has it so.
    assert main(["export", str(tmp_path)]) == 0
    assert ("The systemd unit cannot see" in capsys.readouterr().out) is hidden
    assert f"\nExecStart={prefix}/bin/llm-vitals run\n" in (tmp_path / "systemd/llm-vitals.service").read_text()


def test_kubernetes_accepts_the_manifests(exported: Path) -> None:
    import kubernetes_validate  # type: ignore[import-untyped]  # it has no stubs

    own = [item for item in documents(exported / "kubernetes") if "monitoring" not in item["apiVersion"]]
    for version in ("1.30", kubernetes_validate.latest_version()):
        for document in own:
            kubernetes_validate.validate(document, version, strict=True)
    wrong = yaml.safe_load(yaml.safe_dump(own[1]))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def test_the_prometheus_operator_accepts_its_manifests(manifests: dict[str, Document]) -> None:
    from cloudcoil.models.prometheus_operator import v1

    for kind, model in (("ServiceMonitor", v1.ServiceMonitor), ("PrometheusRule", v1.PrometheusRule)):
        # What the schema does not know is dropped, so that nothing but equality shows that it knows all.
        known = model.model_validate(manifests[kind]).model_dump(by_alias=True, exclude_none=True, mode="json")
        assert known == manifests[kind]


def test_a_key_in_the_secret_reaches_the_configuration(manifests: dict[str, Document], tmp_path: Path) -> None:
    text = manifests["ConfigMap"]["data"]["vitals.yml"]
    text, found = re.subn(r"^( +)# (bearer_token: \S+) .*$", r"\1\2", text, flags=re.MULTILINE)
    assert found == 1
    (tmp_path / "vitals.yml").write_text(text)
    target = load(tmp_path / "vitals.yml", {"VLLM_API_KEY": "k3y"}, in_container=True).targets[0]
    assert target.bearer_token is not None and target.bearer_token.reveal() == "k3y"
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "llm-vitals", "optional": True}}]


def test_what_an_alert_links_to_is_exported(exported: Path) -> None:
    rules = "".join(file.read_text() for file in (exported / "prometheus/rules").glob("*.yml"))
    pages = set(re.findall(r"runbook_url: \S+/user/(\S+)#", rules))
    assert pages
    for page in pages:
        text = (exported / "docs" / page).read_text()
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (exported / "docs" / link).is_file(), link


def test_the_rules_for_the_operator_are_all_rules(manifests: dict[str, Document]) -> None:
    files = (ROOT / "prometheus/rules").glob("*.yml")
    groups = [group for file in sorted(files) for group in yaml.safe_load(file.read_text())["groups"]]
    assert manifests["PrometheusRule"]["spec"]["groups"] == groups


def test_the_service_leads_to_the_pod_and_the_monitor_to_the_service(manifests: dict[str, Document]) -> None:
    template = manifests["Deployment"]["spec"]["template"]
    service = manifests["Service"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [port] = service["spec"]["ports"]
    [container] = template["spec"]["containers"]
    assert port["targetPort"] in {port["name"] for port in container["ports"]}
    monitor = manifests["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [port["name"]]


def test_the_pod_is_as_narrow_as_the_image_allows(manifests: dict[str, Document]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == tuple(map(int, user.groups()))
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]
    assert pod["automountServiceAccountToken"] is False


def test_the_configuration_in_the_cluster_is_one_that_loads(manifests: dict[str, Document], tmp_path: Path) -> None:
    [(name, text)] = manifests["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    assert [target.name for target in load(tmp_path / name, {}, in_container=True).targets] == ["vllm", "ollama"]
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    [mount] = container["volumeMounts"]
    assert {"name": "LLM_VITALS_CONFIG", "value": f"{mount['mountPath']}/{name}"} in container["env"]


def test_each_dashboard_is_in_a_config_map_that_the_sidecar_finds(exported: Path) -> None:
    boards = [item for item in documents(exported / "kubernetes") if is_dashboard(item)]
    texts = {name: text for board in boards for name, text in board["data"].items()}
    assert texts == {file.name: file.read_text() for file in (ROOT / "dashboards/json").glob("*.json")}
    for board in boards:
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        # kubectl apply keeps a copy in an annotation, and annotations end at 256 KiB.
        assert len(json.dumps(board)) < 2**18, f"{board['metadata']['name']} needs kubectl apply --server-side"


@pytest.mark.parametrize("command", [["export", "{folder}"], ["check"]])
def test_a_reader_that_goes_ends_a_command_without_a_complaint(command: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    arguments = [argument.format(folder=tmp_path) for argument in command]
    done = subprocess.run([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
