"""docker compose up, for real: with a vLLM on the host, with the demo, through stops, starts and upgrades."""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.real import hosts
from tests.real.servers import get, query, wait_until
from tests.real.stack import IMAGE, ROOT, Stack, docker, run, services, stack

pytestmark = pytest.mark.timeout(1800)

FIVE = (
    "vitals_time_to_first_token_seconds_count",
    "vitals_inter_token_latency_seconds_count",
    "vitals_requests_running",
    "vitals_requests_waiting",
    "vitals_kv_cache_usage_ratio",
)
OF_THE_DEVICE = (
    "vitals_decode_ceiling_tokens_per_second",
    "vitals_kv_cache_bytes_per_token",
    "vitals_model_weight_bytes",
)
"""Of what is known only if it is known on what the model runs."""

HOST = "http://host.docker.internal"


@pytest.fixture(scope="module")
def shared() -> Iterator[Stack]:
    """One stack for all that a user does one after the other."""
    services()
    with stack("llm-vitals-test") as made:
        yield made


def healthy(prometheus: str) -> bool:
    """Return whether every target of Prometheus is up."""
    targets = json.loads(get(f"{prometheus}/api/v1/targets?state=active"))["data"]["activeTargets"]
    return bool(targets) and all(target["health"] == "up" for target in targets)


def has(prometheus: str, promql: str) -> Callable[[], bool]:
    """Return a question to Prometheus, which holds if there is any answer."""
    return lambda: bool(query(prometheus, promql))


def evaluated(prometheus: str) -> None:
    """Wait until every rule was evaluated after now."""
    now = datetime.now(UTC)

    def anew() -> bool:
        groups = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
        return all(datetime.fromisoformat(group["lastEvaluation"]) > now for group in groups)

    wait_until("the rules were evaluated", anew, 60)


def five_numbers(stack: Stack, target: str = "vllm") -> None:
    """Wait until Prometheus has the five numbers of a target, and all of its own targets are healthy."""
    prometheus = stack.url("prometheus")
    for name in FIVE:
        # Histograms of a server that nobody asked yet are there, with zero.
        at_least = "> 0" if name.endswith("_count") else ">= 0"
        promql = f'{name}{{target="{target}"}} {at_least}'
        wait_until(promql, has(prometheus, promql), 60)
    wait_until("the targets are healthy", lambda: healthy(prometheus), 30)


@pytest.mark.readme("docker compose up -d", "docker compose exec exporter llm-vitals check")
def test_without_any_server_it_comes_up_and_says_where_it_looked(typed: str, shared: Stack) -> None:
    shared.typed(typed, "--wait", "exporter", "prometheus")
    said = shared.typed("docker compose exec exporter llm-vitals check", check=False)
    assert "no target is configured; looked at the usual places:" in said
    assert "vllm-host (http://host.docker.internal:8000)" in said
    wait_until("the targets are healthy", lambda: healthy(shared.url("prometheus")), 30)


@pytest.mark.parametrize("kind", ["simulated", "real"])
class TestVllmOnTheHost:
    @pytest.mark.readme("docker compose exec exporter llm-vitals explain")
    def test_one_that_listens_on_all_addresses_is_read(
        self, kind: str, typed: str, shared: Stack, tmp_path: Path
    ) -> None:
        with hosts.vllm(kind, hosts.EVERYWHERE, tmp_path) as port:
            shared.up(VLLM_URL=f"{HOST}:{port}")
            five_numbers(shared)
            said = shared.typed(typed)
            for key in ("weight_bytes", "model_config"):
                assert re.search(rf"not known - .*\bset .*{key}", said), said

    def test_one_that_listens_on_127_0_0_1_only_is_told_apart_with_the_remedy(
        self, kind: str, shared: Stack, tmp_path: Path
    ) -> None:
        with hosts.vllm(kind, hosts.LOOPBACK, tmp_path) as port:
            shared.up(VLLM_URL=f"{HOST}:{port}")
            said = shared.typed("docker compose exec exporter llm-vitals check", check=False)
            [line] = [line for line in said.splitlines() if line.startswith("FAIL vllm")]
            assert "listens on 127.0.0.1 only is not seen from a container: start it with --host 0.0.0.0" in line
            prometheus = shared.url("prometheus")
            down = 'vitals_target_up{target="vllm"} == 0'
            wait_until("the target is down", has(prometheus, down), 30)
            assert healthy(prometheus), "the exporter itself is up"

    def test_one_behind_a_key_is_read_with_the_key(self, kind: str, shared: Stack, tmp_path: Path) -> None:
        with hosts.vllm(kind, hosts.BEHIND_KEY, tmp_path) as port:
            shared.up(VLLM_URL=f"{HOST}:{port}", VLLM_API_KEY=hosts.KEY)
            assert "\nok   vllm" in "\n" + shared.typed("docker compose exec exporter llm-vitals check")
            five_numbers(shared)
            assert hosts.KEY not in shared.typed("docker compose logs exporter")


@pytest.mark.readme(
    "docker compose logs exporter",
    "docker compose logs grafana",
    "docker compose kill -s HUP exporter",
    "curl -s http://127.0.0.1:10434/metrics",
    "curl -s http://127.0.0.1:9090/api/v1/targets",
    "curl -s http://127.0.0.1:11434/api/ps",
)
def test_what_the_troubleshooting_table_says_can_be_typed_and_answers(
    commands: tuple[str, ...], shared: Stack, tmp_path: Path
) -> None:
    logs, grafana, again, metrics, targets, loaded = commands
    with hosts.ollama(tmp_path) as port:
        shared.up(OLLAMA_URL=f"{HOST}:{port}")
        assert "serving on" in shared.typed(logs)
        shared.typed(grafana)
        shared.typed(again)
        wait_until("it was read again", lambda: "configuration read again" in shared.typed(logs), 30)
        assert 'vitals_target_up{target="ollama"' in plainly(metrics.replace("10434", str(shared.ports["EXPORTER"])))
        said = plainly(targets.replace("9090", str(shared.ports["PROMETHEUS"])))
        assert json.loads(said)["status"] == "success"
        assert "models" in json.loads(plainly(loaded.replace("11434", str(port))))


def plainly(command: str) -> str:
    done = run(command.split())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.readme(
    "docker compose --profile alerts up -d", "docker compose --profile alerts restart prometheus alertmanager"
)
def test_with_alerts_prometheus_has_rules_and_tells_alertmanager(commands: tuple[str, ...]) -> None:
    services()
    start, restart = commands
    with stack("llm-vitals-test-alerts") as made:
        made.typed(start, "--wait", "exporter", "prometheus", "alertmanager")
        api = f"{made.url('prometheus')}/api/v1"
        groups = json.loads(get(f"{api}/rules?type=alert"))["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert rules["LLMInterTokenLatencyHigh"]["health"] in ("ok", "unknown")

        def tells() -> bool:
            return bool(json.loads(get(f"{api}/alertmanagers"))["data"]["activeAlertmanagers"])

        wait_until("Prometheus knows Alertmanager", tells, 60)
        made.typed(restart)
        wait_until("Prometheus is back", lambda: healthy(made.url("prometheus")), 60)
        wait_until("Alertmanager is back", lambda: get(f"{made.url('alertmanager')}/-/ready") != "", 60)


def test_one_behind_a_key_is_not_read_without_it_and_the_remedy_is_said(shared: Stack, tmp_path: Path) -> None:
    with hosts.vllm("simulated", hosts.BEHIND_KEY, tmp_path) as port:
        shared.up(VLLM_URL=f"{HOST}:{port}")
        said = shared.typed("docker compose exec exporter llm-vitals check", check=False)
        assert re.search(r"^FAIL vllm .*401.*VLLM_API_KEY", said, re.MULTILINE)


def history(stack: Stack, at: float) -> dict[frozenset[tuple[str, str]], float]:
    """Return what Prometheus knows of a moment."""
    asked = urllib.parse.urlencode({"query": f"vitals_target_up @ {at:.0f}"})
    answer = json.loads(get(f"{stack.url('prometheus')}/api/v1/query?{asked}"))
    return {frozenset(item["metric"].items()): float(item["value"][1]) for item in answer["data"]["result"]}


@pytest.mark.readme("docker compose up -d --build")
def test_stopped_started_taken_down_and_upgraded_nothing_is_lost(typed: str, shared: Stack, tmp_path: Path) -> None:
    with hosts.vllm("simulated", hosts.EVERYWHERE, tmp_path) as port:
        shared.up(VLLM_URL=f"{HOST}:{port}")
        five_numbers(shared)
        before = time.time()
        known = history(shared, before)
        assert known

        shared.typed("docker compose stop --timeout 10")
        shared.typed("docker compose start")
        wait_until("it is back", lambda: history(shared, before) == known, 60)

        shared.typed("docker compose down --timeout 10")
        shared.up(VLLM_URL=f"{HOST}:{port}")
        assert history(shared, before) == known

        docker("build", "-q", "-t", IMAGE, "--build-arg", "REVISION=old", ".")
        shared.up(VLLM_URL=f"{HOST}:{port}")
        exporter, prometheus = shared.container("exporter"), shared.container("prometheus")
        shared.typed(typed, "--wait", "exporter", "prometheus")
        assert shared.container("exporter") != exporter
        assert shared.container("prometheus") == prometheus
        assert history(shared, before) == known
        five_numbers(shared)


def test_what_runs_has_no_more_rights_memory_and_log_than_it_needs(shared: Stack) -> None:
    shared.up()
    for service in ("exporter", "prometheus"):
        [state] = json.loads(docker("inspect", shared.container(service)))
        host = state["HostConfig"]
        assert state["State"]["Health"]["Status"] == "healthy"
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert 0 < host["Memory"] <= 2**30
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert host["LogConfig"]["Config"] == {"max-size": "10m", "max-file": "3"}
        assert not state["State"]["OOMKilled"]
    status = shared.typed("docker compose exec exporter python -c", "print(open('/proc/1/status').read())")
    assert re.search(r"^Uid:\s+10434\s", status, re.MULTILINE)
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)


@pytest.mark.readme("docker compose --profile demo up -d", "docker compose --profile demo down")
def test_the_demo_shows_both_engines_within_a_minute_and_ends(commands: tuple[str, ...]) -> None:
    services()
    begin, end = commands
    with stack("llm-vitals-test-demo") as demo:
        demo.typed(begin, "--wait", "exporter", "prometheus", "demo")
        prometheus = demo.url("prometheus")
        five_numbers(demo, target="demo-vllm")
        for target in ("demo-vllm", "demo-ollama"):
            for name in ("vitals_probe_time_to_first_token_seconds_count", *OF_THE_DEVICE):
                promql = f'{name}{{target="{target}"}} > 0'
                wait_until(promql, has(prometheus, promql), 120)
        shown = get(f"{demo.url('demo')}/")
        assert "demo-vllm" in shown and "demo-ollama" in shown

        # The exporter beside it found no server, and says nothing of one.
        assert "none was found yet" in get(f"{demo.url('exporter')}/")
        assert query(prometheus, 'vitals_target_up unless vitals_target_up{target=~"demo-(vllm|ollama)"}') == {}

        demo.typed(end)
        demo.up()
        evaluated(prometheus)
        assert query(prometheus, 'last_over_time(up{instance="demo:10434"}[1h])'), "it was there"
        assert query(prometheus, 'ALERTS{alertname="LLMExporterDown"}') == {}, "a demo may end"


@pytest.mark.readme("docker compose --profile proxy up -d")
def test_the_proxy_shows_an_ollamas_real_traffic(typed: str, tmp_path: Path) -> None:
    services()
    with hosts.ollama(tmp_path) as port, stack("llm-vitals-test-proxy") as made:
        made.settings = {"OLLAMA_URL": f"{HOST}:{port}"}
        made.typed(typed, "--wait", "exporter", "prometheus", "proxy")
        tags = json.loads(get(f"{made.url('proxy')}/api/tags"))
        asked = {"model": tags["models"][0]["name"], "prompt": "Name a river.", "options": {"num_predict": 20}}
        request = urllib.request.Request(f"{made.url('proxy')}/api/generate", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b'"done":true' in answer.read()
        five_numbers(made, target="ollama")


PROFILES = re.findall(r"profiles: \[(\w+)\]", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "profiles",
    [chosen for n in range(len(PROFILES) + 1) for chosen in itertools.combinations(sorted(set(PROFILES)), n)],
)
def test_compose_accepts_the_file_with_every_choice_of_profiles(profiles: tuple[str, ...]) -> None:
    services()
    chosen = [word for name in profiles for word in ("--profile", name)]
    done = run(["docker", "compose", *chosen, "--env-file", "/dev/null", "config", "--quiet"])
    assert (done.returncode, done.stderr) == (0, "")


def test_compose_accepts_every_line_of_the_example_of_settings(tmp_path: Path) -> None:
    services()
    text = (ROOT / ".env.example").read_text(encoding="utf-8")
    (tmp_path / "env").write_text(re.sub(r"^#(\w+=)", r"\1", text, flags=re.MULTILINE))
    done = run(["docker", "compose", "--env-file", str(tmp_path / "env"), "config", "--quiet"])
    assert (done.returncode, done.stderr) == (0, "")


def test_grafana_shows_the_dashboards_and_its_password_once() -> None:
    if "grafana" not in services():
        pytest.skip("no image of Grafana can be had")
    with stack("llm-vitals-test-grafana") as made:
        made.up("exporter", "prometheus", "grafana")
        url = made.url("grafana")
        found = {item["uid"] for item in json.loads(get(f"{url}/api/search?type=dash-db"))}
        files = (ROOT / "dashboards/json").glob("*.json")
        assert found == {json.loads(file.read_text(encoding="utf-8"))["uid"] for file in files}
        [password] = re.findall(r"admin gets the password (\S+)", made.typed("docker compose logs grafana"))
        login = f"http://admin:{password}@127.0.0.1:{made.ports['GRAFANA']}/api/datasources/uid/llm-vitals-prometheus/health"
        assert "OK" in run(["curl", "-fsS", login]).stdout
        made.typed("docker compose restart grafana")
        wait_until("Grafana is back", lambda: "ok" in get(f"{url}/api/health"), 60)
        assert made.typed("docker compose logs grafana").count("admin gets the password") == 1
