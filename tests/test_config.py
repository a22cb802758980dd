"""What a good configuration file or environment comes to."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config import (
    BasicAuth,
    Config,
    ConfigError,
    Listen,
    ProbeSettings,
    Secret,
    Target,
    Tls,
    load,
)

EXAMPLE = Path(__file__).parent.parent / "vitals.example.yml"


@pytest.fixture
def read(tmp_path: Path) -> typing.Callable[..., Config]:
    def read(text: str, **environ: str) -> Config:
        (tmp_path / "vitals.yml").write_text(text)
        return load(tmp_path / "vitals.yml", environ, in_container=False)

    return read


def target_of(read: typing.Callable[..., Config], keys: str, **environ: str) -> Target:
    (target,) = read(f'targets: [{{url: "http://h:1", {keys}}}]', **environ).targets
    return target


def keys_of(section: type) -> Iterator[tuple[str, ...]]:
    for field, hint in typing.get_type_hints(section).items():
        yield (field,)
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part) and isinstance(part, type) and part is not Listen:  # written as one value
                yield from ((field, *rest) for rest in keys_of(part))


def keys_in(document: object) -> Iterator[tuple[str, ...]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield (key,)
            yield from ((key, *rest) for rest in keys_in(value))


def test_a_target_needs_only_its_url(read: typing.Callable[..., Config]) -> None:
    assert read("targets: [{url: http://gpu1:8000}]") == Config(
        listen=Listen("127.0.0.1", 10434),
        targets=(
            Target(
                name="gpu1:8000",
                url="http://gpu1:8000",
                backend="auto",
                metrics_path="/metrics",
                timeout=5.0,
                headers=(),
                bearer_token=None,
                bearer_token_file=None,
                basic_auth=None,
                tls=Tls(None, None, None, None, insecure_skip_verify=False),
                probe=ProbeSettings(
                    enabled=True,
                    interval=60.0,
                    timeout=60.0,
                    first_token_timeout=30.0,
                    max_tokens=32,
                    models=(),
                ),
            ),
        ),
        discovered=False,
    )


def test_every_key_of_a_target_arrives(read: typing.Callable[..., Config], tmp_path: Path) -> None:
    config = read(
        """
        listen: "[::1]:9000"
        targets:
          - name: a
            url: https://h/llm
            backend: vllm
            metrics_path: /m
            timeout: 1.5s
            headers: {X-A: "1", X-B: two words}
            basic_auth: {username: u, password_file: secrets/p}
            tls: {ca_file: /ca, cert_file: c, key_file: k, server_name: s, insecure_skip_verify: true}
            probe:
              {enabled: false, interval: 1m30s, timeout: 2s, first_token_timeout: 250ms,
               max_tokens: 8, models: [m, n], kinds: [small], dialect: openai_chat, load: true, max_share: 0.05}
        """
    )
    assert config.listen == Listen("::1", 9000)
    assert config.targets == (
        Target(
            "a",
            "https://h/llm",
            "vllm",
            metrics_path="/m",
            timeout=1.5,
            headers=(("X-A", Secret("1")), ("X-B", Secret("two words"))),
            basic_auth=BasicAuth("u", password_file=tmp_path / "secrets/p"),
            tls=Tls(Path("/ca"), tmp_path / "c", tmp_path / "k", "s", insecure_skip_verify=True),
            probe=ProbeSettings(
                False, 90.0, 2.0, 0.25, 8, ("m", "n"), ("small",), "openai_chat", load=True, max_share=0.05
            ),
        ),
    )


def test_the_example_loads_as_it_is_and_shows_every_key() -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    load(EXAMPLE, {}, in_container=False)
    shown = set(keys_in(document["defaults"])).union(*map(keys_in, document["targets"]))
    assert set(keys_of(Target)) - shown == {("basic_auth", "password_file")}
    assert "password_file" in EXAMPLE.read_text()
    assert document.keys() == {"listen", "defaults", "targets"}


def test_the_defaults_in_the_example_are_the_built_in_ones(read: typing.Callable[..., Config]) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    assert document["defaults"].keys() == {key for key, *_ in keys_of(Target)} - {"name", "url"}
    document["targets"] = [{"url": "http://h:1"}]
    assert read(yaml.safe_dump(document)) == Config(Listen("127.0.0.1", 10434), (Target("h:1", "http://h:1"),))


@pytest.mark.parametrize(
    ("pasted", "base"),
    [
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000"),
        ("http://h:8000/metrics", "http://h:8000"),
        ("http://h:8000/team/metrics/", "http://h:8000/team"),
        ("http://h:8000/team/v1", "http://h:8000/team"),
        ("http://metrics", "http://metrics"),
        ("http://v1/", "http://v1"),
        ("HTTPS://Host", "https://host"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://10.0.0.1:1", "http://10.0.0.1:1"),
    ],
)
def test_what_people_paste_becomes_the_base_url(read: typing.Callable[..., Config], pasted: str, base: str) -> None:
    assert read(f'targets: [{{url: "{pasted}"}}]').targets[0].url == base


def test_the_targets_own_metrics_path_is_taken_off_its_url(read: typing.Callable[..., Config]) -> None:
    config = read("targets: [{url: http://h/prometheus/metrics, metrics_path: /prometheus/metrics}]")
    assert config.targets[0].url == "http://h"


@pytest.mark.parametrize(
    ("url", "name"), [("http://h", "h:80"), ("https://h/x", "h:443"), ("http://[::1]:8000", "::1:8000")]
)
def test_a_target_without_a_name_is_called_by_host_and_port(
    read: typing.Callable[..., Config], url: str, name: str
) -> None:
    assert read(f'targets: [{{url: "{url}"}}]').targets[0].name == name


def test_defaults_are_merged_key_by_key_and_the_target_wins(read: typing.Callable[..., Config]) -> None:
    config = read(
        """
        defaults:
          timeout: 2s
          bearer_token: shared
          headers: {X-Tenant: a, X-Trace: b}
          tls: {server_name: s, insecure_skip_verify: true}
          probe: {interval: 5m, max_tokens: 8}
        targets:
          - url: http://h:1
            headers: {x-tenant: mine, X-Own: c}
            tls: {server_name: t}
            probe: {max_tokens: 4}
          - url: http://h:2
            timeout: null
            bearer_token: null
            headers: {X-Trace: null}
            tls: null
            basic_auth: {username: u, password: p}
        """
    )
    first, second = config.targets
    assert (first.timeout, first.bearer_token) == (2.0, Secret("shared"))
    assert first.headers == (
        ("x-tenant", Secret("mine")),
        ("X-Trace", Secret("b")),
        ("X-Own", Secret("c")),
    )
    assert first.tls == Tls(server_name="t", insecure_skip_verify=True)
    assert first.probe == ProbeSettings(interval=300.0, max_tokens=4)
    assert (second.timeout, second.bearer_token, second.tls) == (5.0, None, Tls())
    assert second.headers == (("X-Tenant", Secret("a")),)
    assert second.probe == ProbeSettings(interval=300.0, max_tokens=8)


def test_variables_are_filled_in_without_changing_the_structure(
    read: typing.Callable[..., Config],
) -> None:
    target = target_of(
        read,
        "name: '${N}-${N}', bearer_token: 'a$$b$c${TOKEN}', probe: {models: ['${MODEL}']}",
        N="x",
        TOKEN="${N}$$",
        MODEL="a, enabled: false]",
    )
    assert target.name == "x-x"
    assert target.bearer_token == Secret("a$b$c${N}$$")
    assert target.probe == ProbeSettings(models=("a, enabled: false]",))


def test_variables_work_where_numbers_durations_and_booleans_are_expected(
    read: typing.Callable[..., Config],
) -> None:
    target = target_of(
        read,
        "timeout: '${T}s', probe: {interval: '${I}', timeout: '${S}', max_tokens: '${N}', enabled: '${E}'}",
        T="2.5",
        I="1m30s",
        S="45",
        N="7",
        E="false",
    )
    assert target.timeout == 2.5
    assert target.probe == ProbeSettings(enabled=False, interval=90.0, timeout=45.0, max_tokens=7)


def test_anchors_and_merge_keys_are_read_and_dates_are_strings(read: typing.Callable[..., Config]) -> None:
    config = read(
        """
        targets:
          - &a {url: "http://h:1", name: 2024-01-02, probe: &p {interval: 5s}}
          - {<<: *a, name: b, probe: {<<: *p, max_tokens: 2}}
        """
    )
    assert [target.name for target in config.targets] == ["2024-01-02", "b"]
    assert config.targets[1].probe == ProbeSettings(interval=5.0, max_tokens=2)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int, millis: int) -> None:
    environ = {"D": f"{hours}h{minutes}m{seconds}s{millis}ms"}
    wanted = hours * 3600 + minutes * 60 + seconds + millis / 1000
    try:
        config = load(Path(__file__).parent / "fixtures/config/interval.yml", environ, in_container=False)
    except ConfigError:
        assert wanted < 1
    else:
        assert config.targets[0].probe.interval == pytest.approx(wanted)


def test_a_secret_shows_itself_only_when_asked_by_name(read: typing.Callable[..., Config]) -> None:
    target = target_of(read, "headers: {X-Key: s3cr3t}, basic_auth: {username: u, password: s3cr3t}", unused="s3cr3t")
    (_, secret), *_ = target.headers
    assert secret.reveal() == "s3cr3t"
    for text in (repr(target), str(target), f"{secret:>20}", f"{secret!s}", "%s" % secret):  # noqa: UP031
        assert "s3cr3t" not in text
        assert "<secret>" in text
    assert secret == Secret("s3cr3t") != Secret("other")
    assert len({secret, Secret("s3cr3t"), Secret("other")}) == 2
    assert secret != "s3cr3t"
