"""docker-compose.yml, Dockerfile, Prometheus's and Grafana's files: what must hold before anything is started."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build.queries import JOB
from exporter import __version__

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
PROMETHEUS: Any = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
PROVISIONING = ROOT / "dashboards/provisioning"
DATASOURCE: Any = yaml.safe_load((PROVISIONING / "datasources/prometheus.yml").read_text(encoding="utf-8"))


def interpolate(text: str, environ: dict[str, str]) -> str:
    """Do with ${A:-b} and ${A:+b} what Compose does with them; b may hold one more of its kind."""
    pattern = re.compile(r"\$\{(\w+):([-+])((?:[^{}]|\$\{[^{}]*\})*)\}")

    def replace(match: re.Match[str]) -> str:
        name, operator, word = match.groups()
        value = environ.get(name, "")
        chosen = (value or word) if operator == "-" else (word if value else "")
        return interpolate(chosen, environ)

    return pattern.sub(replace, text)


def environment(service: str, **environ: str) -> dict[str, str]:
    return {name: interpolate(value, environ) for name, value in SERVICES[service]["environment"].items()}


@pytest.mark.parametrize("service", SERVICES)
def test_a_port_is_reachable_from_this_machine_alone_unless_told_otherwise(service: str) -> None:
    for port in SERVICES[service].get("ports", ()):
        assert interpolate(port, {}).startswith("127.0.0.1:")
        assert interpolate(port, {"LISTEN_ADDRESS": "10.0.0.7"}).startswith("10.0.0.7:")


def test_the_ports_are_the_usual_ones() -> None:
    ports = {name: interpolate(service["ports"][0], {}) for name, service in SERVICES.items() if "ports" in service}
    usual = {
        "exporter": "127.0.0.1:10434:10434",
        "prometheus": "127.0.0.1:9090:9090",
        "grafana": "127.0.0.1:3000:3000",
    }
    assert usual.items() <= ports.items()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_no_rights_to_spare_and_no_endless_log(service: str) -> None:
    assert SERVICES[service]["cap_drop"] == ["ALL"]
    assert SERVICES[service]["security_opt"] == ["no-new-privileges:true"]
    assert "max-size" in SERVICES[service]["logging"]["options"]
    assert SERVICES[service]["restart"] == "unless-stopped"
    assert re.fullmatch(r"\d+[mg]", interpolate(SERVICES[service]["mem_limit"], {}))
    assert "user" not in SERVICES[service]


def test_the_exporter_cannot_write_to_its_disk() -> None:
    assert SERVICES["exporter"]["read_only"] is True


@pytest.mark.parametrize("service", [name for name, service in SERVICES.items() if "build" not in service])
def test_an_image_of_others_has_its_exact_version(service: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", SERVICES[service]["image"])


def test_a_server_on_the_host_is_reachable_on_linux_too() -> None:
    assert "host.docker.internal:host-gateway" in SERVICES["exporter"]["extra_hosts"]


def test_without_settings_the_exporter_looks_for_servers_itself() -> None:
    assert set(environment("exporter").values()) == {""}


def test_a_configuration_file_is_named_as_the_container_sees_it() -> None:
    given = environment("exporter", LLM_VITALS_CONFIG="a.yml")
    assert given["LLM_VITALS_CONFIG"] == "/etc/llm-vitals/a.yml"
    assert "./config:/etc/llm-vitals:ro" in SERVICES["exporter"]["volumes"]


def started(tmp_path: Path, **environ: str) -> tuple[dict[str, str], str]:
    """Run what starts Grafana with `env` in its place; return the environment it is given, and what was said."""
    script = ROOT / "deploy/grafana/start.sh"
    given = {"PATH": os.environ["PATH"], "GF_PATHS_DATA": str(tmp_path), **environment("grafana", **environ)}
    done = subprocess.run(
        ["/bin/sh", str(script), "env"], env=given, capture_output=True, text=True, timeout=30, check=True
    )
    lines = done.stdout.splitlines()
    said = [line for line in lines if not re.match(r"\w+=", line)]
    return dict(line.split("=", 1) for line in lines if line not in said), "\n".join(said)


def test_without_a_password_one_is_made_up_and_shown_once(tmp_path: Path) -> None:
    first, said = started(tmp_path)
    password = first["GF_SECURITY_ADMIN_PASSWORD"]
    assert re.fullmatch(r"[\w-]{24}", password)
    assert password in said
    (tmp_path / "grafana.db").touch()
    later, said = started(tmp_path)
    assert said == ""
    # Grafana would otherwise fall back on a password that everybody knows, if the first start made no user.
    assert re.fullmatch(r"[\w-]{24}", later["GF_SECURITY_ADMIN_PASSWORD"])
    assert later["GF_SECURITY_ADMIN_PASSWORD"] != password


def test_a_password_that_is_given_is_taken_and_not_shown(tmp_path: Path) -> None:
    given, said = started(tmp_path, GRAFANA_ADMIN_PASSWORD="s3cret")
    assert given["GF_SECURITY_ADMIN_PASSWORD"] == "s3cret"
    assert said == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "localhost", "[::1]"])
def test_on_this_machine_who_is_not_logged_in_may_look(address: str, tmp_path: Path) -> None:
    assert started(tmp_path, LISTEN_ADDRESS=address)[0]["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert started(tmp_path)[0]["GF_AUTH_ANONYMOUS_ENABLED"] == "true"


@pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.7", "[::]", "[2001:db8::1]", "192.168.127.1"])
def test_from_elsewhere_nobody_may_look_without_a_log_in(address: str, tmp_path: Path) -> None:
    assert started(tmp_path, LISTEN_ADDRESS=address)[0]["GF_AUTH_ANONYMOUS_ENABLED"] == "false"


def test_grafana_is_started_by_the_program_of_its_image() -> None:
    assert SERVICES["grafana"]["entrypoint"] == ["/bin/sh", "/etc/llm-vitals/start.sh", "/run.sh"]
    assert "./deploy/grafana/start.sh:/etc/llm-vitals/start.sh:ro" in SERVICES["grafana"]["volumes"]


def test_who_is_not_logged_in_may_only_look() -> None:
    assert environment("grafana")["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_no_secret_has_a_default() -> None:
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        if re.match(r"#?\w*(PASSWORD|KEY|TOKEN)\w*=", line):
            assert line.endswith("="), line


def test_every_setting_of_compose_is_in_the_example_and_the_other_way_round() -> None:
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    shown = set(re.findall(r"^#(\w+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == used


def test_the_defaults_in_the_example_are_the_defaults() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    defaults = {name: word for name, word in re.findall(r"\$\{(\w+):-([^{}]*)\}", text) if word}
    shown = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: shown[name] for name in defaults} == defaults


def test_prometheus_scrapes_the_exporter_every_five_seconds_and_itself() -> None:
    assert PROMETHEUS["global"]["scrape_interval"] == "5s"
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in PROMETHEUS["scrape_configs"]}
    assert jobs == {JOB: ["exporter:10434"], "prometheus": ["127.0.0.1:9090"]}


def test_prometheus_finds_the_services_of_profiles_that_export_by_their_names() -> None:
    exporting = [name for name, service in SERVICES.items() if service["image"].startswith("llm-vitals:")]
    [job] = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == JOB]
    [by_name] = job["dns_sd_configs"]
    assert (by_name["type"], by_name["port"]) == ("A", 10434)
    assert sorted(by_name["names"]) == sorted(name for name in exporting if "profiles" in SERVICES[name])


def test_grafana_knows_the_scrape_interval_and_where_prometheus_is() -> None:
    (source,) = DATASOURCE["datasources"]
    assert source["uid"] == "llm-vitals-prometheus"
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    assert source["url"] == "http://prometheus:9090"


def test_grafana_reads_the_dashboards_where_compose_puts_them() -> None:
    provider = yaml.safe_load((PROVISIONING / "dashboards/llm-vitals.yml").read_text(encoding="utf-8"))["providers"][0]
    assert provider["folder"] == "LLM vitals"
    assert f"./dashboards/json:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]
    home = Path(environment("grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert json.loads((ROOT / "dashboards/json" / home.name).read_text(encoding="utf-8"))["uid"] == "llm-vitals-five"


def mounted() -> list[Path]:
    sources = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    return [ROOT / source for source in sources if source.startswith("./")]


@pytest.mark.parametrize("folder", mounted(), ids=lambda folder: folder.name)
def test_what_is_mounted_exists_and_others_may_read_it(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        needed = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
        assert path.stat().st_mode & needed == needed, path


def test_the_image_runs_as_an_ordinary_user_and_checks_itself_without_curl() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", dockerfile, re.MULTILINE)
    assert re.search(r'^HEALTHCHECK .*CMD \["llm-vitals", "check", "--self"\]$', dockerfile, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["llm-vitals"\]$', dockerfile, re.MULTILINE)


def test_the_image_says_the_version_of_the_program() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert f'image.version="{__version__}"' in dockerfile


@pytest.mark.parametrize("lock", ["requirements", "build"])
def test_a_locked_package_has_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / f"deploy/{lock}.lock").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; [^#]+?)?( +--hash=sha256:[0-9a-f]{64})+", line.strip()), line


def test_the_lock_has_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    locked = re.findall(r"^([\w-]+)==", (ROOT / "deploy/requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    needed = {re.split(r"[<>=]", name)[0].replace("_", "-") for name in project["project"]["dependencies"]}
    assert needed <= set(locked)


def test_prometheus_accepts_its_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH")
    done = subprocess.run(
        [promtool, "check", "config", str(ROOT / "prometheus/prometheus.yml")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr


# The keys that Grafana documents for its provisioning files (Administration, Provisioning Grafana), and their types.
DATASOURCE_KEYS = {
    "name": str, "type": str, "uid": str, "url": str, "access": str, "isDefault": bool, "editable": bool,
    "jsonData": dict, "orgId": int, "basicAuth": bool, "basicAuthUser": str, "withCredentials": bool, "version": int,
    "secureJsonData": dict, "user": str, "database": str,
}  # fmt: skip
PROVIDER_KEYS = {
    "name": str, "orgId": int, "folder": str, "folderUid": str, "type": str, "disableDeletion": bool,
    "updateIntervalSeconds": int, "allowUiUpdates": bool, "options": dict,
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "kind", "keys"),
    [
        ("datasources/prometheus.yml", "datasources", DATASOURCE_KEYS),
        ("dashboards/llm-vitals.yml", "providers", PROVIDER_KEYS),
    ],
)
def test_grafanas_provisioning_has_only_keys_that_grafana_knows(file: str, kind: str, keys: dict[str, type]) -> None:
    document = yaml.safe_load((PROVISIONING / file).read_text(encoding="utf-8"))
    assert document.keys() == {"apiVersion", kind} and document["apiVersion"] == 1
    for item in document[kind]:
        assert {"name", "type"} <= item.keys() <= keys.keys()
        for key, value in item.items():
            assert type(value) is keys[key], key


def test_every_data_source_that_a_file_names_is_the_one_that_is_provisioned() -> None:
    texts = [*(ROOT / "dashboards/json").glob("*.json"), *PROVISIONING.rglob("*.yml")]
    named = {
        uid
        for file in texts
        for uid in re.findall(r"\"?(?:datasourceUid|datasource_uid)\"?: *\"?([\w-]+)", file.read_text(encoding="utf-8"))
    }
    assert named <= {DATASOURCE["datasources"][0]["uid"], "__expr__"}


@pytest.mark.parametrize("override", sorted((ROOT / "deploy/compose").glob("*.yml")), ids=lambda path: path.stem)
def test_an_override_changes_the_exporter_alone(override: Path) -> None:
    assert yaml.safe_load(override.read_text(encoding="utf-8"))["services"].keys() == {"exporter"}


def test_hosted_ci_runs_the_same_script_as_everywhere() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step for step in steps if step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR
