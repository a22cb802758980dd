"""docker-compose.yml, Dockerfile, Prometheus's and Grafana's files: what must hold before anything is started."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.build.queries import JOB

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
    for port in SERVICES[service]["ports"]:
        assert interpolate(port, {}).startswith("127.0.0.1:")
        assert interpolate(port, {"LISTEN_ADDRESS": "10.0.0.7"}).startswith("10.0.0.7:")


def test_the_ports_are_the_usual_ones() -> None:
    ports = {name: interpolate(service["ports"][0], {}) for name, service in SERVICES.items()}
    assert ports == {
        "exporter": "127.0.0.1:10434:10434",
        "prometheus": "127.0.0.1:9090:9090",
        "grafana": "127.0.0.1:3000:3000",
    }


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_has_no_rights_to_spare_and_no_endless_log(service: str) -> None:
    assert SERVICES[service]["cap_drop"] == ["ALL"]
    assert SERVICES[service]["security_opt"] == ["no-new-privileges:true"]
    assert "max-size" in SERVICES[service]["logging"]["options"]
    assert SERVICES[service]["restart"] == "unless-stopped"
    assert "user" not in SERVICES[service]


def test_the_exporter_cannot_write_to_its_disk() -> None:
    assert SERVICES["exporter"]["read_only"] is True


@pytest.mark.parametrize("service", ["prometheus", "grafana"])
def test_an_image_of_others_has_its_exact_version(service: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", SERVICES[service]["image"])


def test_a_server_on_the_host_is_reachable_on_linux_too() -> None:
    assert "host.docker.internal:host-gateway" in SERVICES["exporter"]["extra_hosts"]


def exporter_command(**environ: str) -> list[str]:
    return shlex.split(interpolate(SERVICES["exporter"]["command"], environ))


def test_without_settings_the_exporter_looks_for_servers_itself() -> None:
    assert set(environment("exporter").values()) == {""}
    assert exporter_command() == ["run", "--listen", "0.0.0.0:10434", "--log-level", "info"]


def test_a_configuration_file_is_named_as_the_container_sees_it() -> None:
    assert exporter_command(LLM_VITALS_CONFIG="a.yml")[-2:] == ["--config", "/etc/llm-vitals/a.yml"]
    assert "./config:/etc/llm-vitals:ro" in SERVICES["exporter"]["volumes"]


def test_grafana_has_no_user_and_no_login_form_without_a_password() -> None:
    defaults = SERVICES["grafana"]["command"]
    assert "cfg:default.security.disable_initial_admin_creation=true" in defaults
    assert "cfg:default.auth.disable_login_form=true" in defaults
    given = environment("grafana")
    assert given["GF_SECURITY_ADMIN_PASSWORD"] == ""
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == ""
    assert given["GF_AUTH_DISABLE_LOGIN_FORM"] == ""


def test_grafana_has_an_admin_and_a_login_form_with_a_password() -> None:
    given = environment("grafana", GRAFANA_ADMIN_PASSWORD="s3cret")
    assert given["GF_SECURITY_ADMIN_PASSWORD"] == "s3cret"
    assert given["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "false"
    assert given["GF_AUTH_DISABLE_LOGIN_FORM"] == "false"


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
    assert re.search(r"^HEALTHCHECK .*127\.0\.0\.1", dockerfile.replace("\\\n", ""), re.MULTILINE)
    assert not re.search(r"\b(curl|wget) -", dockerfile)


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
