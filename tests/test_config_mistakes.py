"""Every kind of mistake in a configuration file, with the exact message that it gets."""

from pathlib import Path

import pytest

from exporter.config import ConfigError, load

ENVIRON = {
    "WORD": "soon",
    "KEY": "s3cr3t-value",
    "SPLIT": "one\r\ntwo",
    "EMPTY": "",
    "BIG": "9999",
    "URL": "ftp://s3cr3t",
}

DURATION = "expected a duration such as 5s or 250ms"
PLAIN = "expected printable ASCII characters without blanks or line breaks"
BOOLEAN = "expected a string, got a boolean (YAML reads on, off, yes, no so); put it in quotes"
NAME = "expected letters, digits and any of . _ : - only"
AUTHORITY = "expected a host and a port in 1..65535"
HEADER = "expected printable ASCII characters without line breaks, and no blank at either end"
DEFAULTS_KEYS = (
    "backend, metrics_path, timeout, headers, bearer_token, bearer_token_file, basic_auth, tls, probe, proxy, "
    "device, devices, memory_bandwidth_gb_s, host_memory_bandwidth_gb_s, weight_bytes, active_weight_bytes, "
    "model_config, kv_cache_type"
)
TARGET_KEYS = f"name, url, {DEFAULTS_KEYS}"

IN_A_TARGET = [
    ("probe: {interval: soon}", f".probe.interval: {DURATION}, got 'soon'"),
    ("probe: {interval: -5s}", f".probe.interval: {DURATION}, got '-5s'"),
    ("probe: {interval: ''}", f".probe.interval: {DURATION}, got ''"),
    ("probe: {interval: 5s1m}", f".probe.interval: {DURATION}, got '5s1m'"),
    ("probe: {interval: true}", f".probe.interval: {DURATION}, got true"),
    ("probe: {interval: [5s]}", f".probe.interval: {DURATION}, got a list"),
    ("probe: {interval: '${WORD}'}", f".probe.interval: {DURATION}, got the value of '${{WORD}}'"),
    ("probe: {interval: 999ms}", ".probe.interval: must be in 1s..24h, got '999ms'"),
    ("probe: {interval: 0}", ".probe.interval: a duration needs a unit: write 0s (or ms, m, h), not 0"),
    ("probe: {timeout: 11m}", ".probe.timeout: must be in 1s..10m, got '11m'"),
    ("probe: {first_token_timeout: 1ms}", ".probe.first_token_timeout: must be in 100ms..10m, got '1ms'"),
    ("timeout: 5", ".timeout: a duration needs a unit: write 5s (or ms, m, h), not 5"),
    ("timeout: -1.5", ".timeout: a duration needs a unit: write -1.5s (or ms, m, h), not -1.5"),
    ("timeout: 99ms", ".timeout: must be in 100ms..5m, got '99ms'"),
    ("timeout: '${BIG}'", ".timeout: must be in 100ms..5m, got the value of '${BIG}'"),
    ("probe: {max_tokens: -1}", ".probe.max_tokens: must be in 1..4096, got -1"),
    ("probe: {max_tokens: '32'}", ".probe.max_tokens: expected a whole number, got '32'"),
    ("probe: {max_tokens: 3.5}", ".probe.max_tokens: expected a whole number, got 3.5"),
    ("probe: {max_tokens: yes}", ".probe.max_tokens: expected a whole number, got true"),
    (
        "probe: {max_tokens: '${WORD}'}",
        ".probe.max_tokens: expected a whole number, got the value of '${WORD}'",
    ),
    ("probe: {max_tokens: '${BIG}'}", ".probe.max_tokens: must be in 1..4096, got the value of '${BIG}'"),
    ("probe: {enabled: 'true'}", ".probe.enabled: expected true or false (without quotes), got 'true'"),
    ("probe: {enabled: 1}", ".probe.enabled: expected true or false (without quotes), got 1"),
    ("probe: {models: m}", ".probe.models: expected a list, got a string"),
    ("probe: {models: [m, 7]}", ".probe.models[1]: expected a string, got a number; put it in quotes"),
    ("probe: {models: [on]}", f".probe.models[0]: {BOOLEAN}"),
    ("probe: {kinds: [tiny]}", ".probe.kinds[0]: expected one of small, large, cached, got 'tiny'"),
    ("probe: {kinds: []}", ".probe.kinds: needs small or large; cached only repeats the prompt before it"),
    ("probe: {kinds: [cached]}", ".probe.kinds: needs small or large; cached only repeats the prompt before it"),
    ("probe: {load: true}", ".probe.load: true needs probe.models: which ones may be loaded?"),
    ("probe: {max_share: 1%}", ".probe.max_share: expected a number such as 0.01, got '1%'"),
    ("probe: {max_share: true}", ".probe.max_share: expected a number such as 0.01, got true"),
    ("probe: {max_share: 0}", ".probe.max_share: must be in 0.0001..1, got 0"),
    ("probe: {max_share: 1.5}", ".probe.max_share: must be in 0.0001..1, got 1.5"),
    (
        "probe: {dialect: chat}",
        ".probe.dialect: expected one of auto, ollama_generate, ollama_chat, openai_completions, openai_chat, "
        "got 'chat'",
    ),
    (
        "backend: vllm, probe: {dialect: ollama_chat}",
        ".probe.dialect: ollama_chat is Ollama's, and backend is vllm",
    ),
    ("probe: true", ".probe: expected a mapping, got a boolean"),
    ("probe: {intervall: 5s}", ".probe.intervall: unknown key; did you mean 'interval'?"),
    ("bakend: vllm", ".bakend: unknown key; did you mean 'backend'?"),
    ("zzz: 1", f".zzz: unknown key; allowed: {TARGET_KEYS}"),
    (
        "tls: {server_name: 10.0.0.256}",
        ".tls.server_name: expected a host name or an IP address, got '10.0.0.256'",
    ),
    (
        "tls: {server_name: https://h}",
        ".tls.server_name: expected a host name or an IP address, got 'https://h'",
    ),
    ('tls: {ca_file: "a\\0"}', ".tls.ca_file: the name of a file cannot contain a zero byte"),
    ("7: 1", f".7: unknown key; allowed: {TARGET_KEYS}"),
    ("backend: tgi", ".backend: expected one of auto, vllm, ollama, openai, got 'tgi'"),
    ("backend: [vllm]", ".backend: expected one of auto, vllm, ollama, openai, got a list"),
    ("metrics_path: metrics", ".metrics_path: expected a path such as /metrics, got 'metrics'"),
    ("metrics_path: '/metrics?x=1'", ".metrics_path: expected a path such as /metrics, got '/metrics?x=1'"),
    ("name: no", f".name: {BOOLEAN}"),
    ("name: 7", ".name: expected a string, got a number; put it in quotes"),
    ("name: {a: b}", ".name: expected a string, got a mapping"),
    ("name: a/b", f".name: {NAME}, got 'a/b'"),
    ("name: ..", f".name: {NAME}, got '..'"),
    ("name: ''", ".name: must not be empty"),
    ("bearer_token: ''", ".bearer_token: must not be empty"),
    ("bearer_token: '${EMPTY}'", ".bearer_token: must not be empty"),
    ("bearer_token: 31415", ".bearer_token: expected a string, got a number; put it in quotes"),
    ("bearer_token: two words", f".bearer_token: {PLAIN}"),
    ("bearer_token: '${NOT_SET}'", ".bearer_token: the environment variable NOT_SET is not set"),
    (
        "bearer_token: '${NOT-A-NAME}'",
        ".bearer_token: ${ begins the name of an environment variable as in ${NAME}; write $${ for the text",
    ),
    (
        "bearer_token: a, bearer_token_file: b",
        ": bearer_token and bearer_token_file exclude each other; keep one of them",
    ),
    (
        "bearer_token: a, basic_auth: {username: u, password: p}",
        ": bearer_token and basic_auth exclude each other; keep one of them",
    ),
    (
        "bearer_token: a, headers: {authorization: b}",
        ".headers: bearer_token makes the header Authorization; keep one of them",
    ),
    (
        "basic_auth: {username: u, password: p}, headers: {Authorization: b}",
        ".headers: basic_auth makes the header Authorization; keep one of them",
    ),
    ("basic_auth: 'u:s3cr3t'", ".basic_auth: expected a mapping, got a string"),
    ("basic_auth: {password: p}", ".basic_auth.username: missing; it has no default"),
    ("basic_auth: {username: u}", ".basic_auth: expected exactly one of password and password_file"),
    (
        "basic_auth: {username: u, password: p, password_file: f}",
        ".basic_auth: expected exactly one of password and password_file",
    ),
    (
        "basic_auth: {username: 'u:s3cr3t', password: p}",
        ".basic_auth.username: a user name cannot contain ':'; the password has a key of its own",
    ),
    ("headers: [a]", ".headers: expected a mapping, got a list"),
    ("headers: {'X Y': a}", ".headers.X Y: expected a header's name such as X-Tenant, got 'X Y'"),
    ("headers: {X-A: '${SPLIT}'}", f".headers.X-A: {HEADER}"),
    ("headers: {X-A: ' a'}", f".headers.X-A: {HEADER}"),
    ("headers: {X-A: 1}", ".headers.X-A: expected a string, got a number; put it in quotes"),
    ("headers: {X-A: a, x-a: b}", ".headers.x-a: given twice, as case makes no difference; keep one"),
    ("tls: {cert_file: c}", ".tls.key_file: missing; cert_file needs it (one file may hold both)"),
    ("tls: {key_file: k}", ".tls.cert_file: missing; key_file needs it (one file may hold both)"),
    ("tls: {ca_file: true}", f".tls.ca_file: {BOOLEAN}"),
    (
        "tls: {insecure_skip_verify: 'no'}",
        ".tls.insecure_skip_verify: expected true or false (without quotes), got 'no'",
    ),
]

IN_A_URL = [
    (
        "localhost:8000",
        "expected a URL such as 'http://localhost:8000', got 'localhost:8000'; put http:// first",
    ),
    ("ftp://h", "expected http:// or https://, got 'ftp://h'"),
    ("${URL}", "expected http:// or https://, got the value of '${URL}'"),
    ("http://u:s3cr3t@h", "credentials do not belong in a URL; set basic_auth in the configuration file"),
    ("http://h/?key=s3cr3t", "a base URL ends before '?' and '#'; remove what follows"),
    ("http://h/#x", "a base URL ends before '?' and '#'; remove what follows"),
    ("http://", f"{AUTHORITY}, got 'http://'"),
    ("http://:8000", f"{AUTHORITY}, got 'http://:8000'"),
    ("http://h..x:1", f"{AUTHORITY}, got 'http://h..x:1'"),
    ("http://192.168.1.256:8000", f"{AUTHORITY}, got 'http://192.168.1.256:8000'"),
    ("http://10.0.1:8000", f"{AUTHORITY}, got 'http://10.0.1:8000'"),
    ("http://h:0", f"{AUTHORITY}, got 'http://h:0'"),
    ("http://h:65536", f"{AUTHORITY}, got 'http://h:65536'"),
    ("http://h:port", f"{AUTHORITY}, got 'http://h:port'"),
    ("http://[::1", f"{AUTHORITY}, got 'http://[::1'"),
    ("http://<host>:8000", f"{AUTHORITY}, got 'http://<host>:8000'"),
    ("http://h /x", PLAIN),
    ("", "must not be empty"),
]

LISTEN = "listen: expected ADDR:PORT such as 127.0.0.1:10434, [::1]:10434 or :10434"
NO_TARGETS = "targets: expected a list of at least one target"

IN_A_DOCUMENT = [
    ("targets: []", f"{NO_TARGETS}, got an empty list"),
    ("targets: http://h", f"{NO_TARGETS}, got a string"),
    ("listen: ':1'", f"{NO_TARGETS}, got nothing"),
    ("targets: [http://h]", "targets[0]: expected a mapping, got a string"),
    ("targets: [{name: a}]", "targets[0].url: missing; it has no default"),
    ("targets: [{url: }]", "targets[0].url: missing; it has no default"),
    ("targets: [{url: http://h}]\ntarget: []", "target: unknown key; did you mean 'targets'?"),
    ("targets: [{url: http://h}]\nzzz: 1", "zzz: unknown key; allowed: listen, defaults, targets"),
    (
        'targets: [{url: http://h}]\n"a\\nb": 1',
        "'a\\nb': unknown key; allowed: listen, defaults, targets",
    ),
    ("targets: [{url: http://h}]\nlisten: 10434", f"{LISTEN}, got 10434"),
    ("targets: [{url: http://h}]\nlisten: '::1:80'", f"{LISTEN}, got '::1:80'"),
    ("targets: [{url: http://h}]\nlisten: 'h:70000'", f"{LISTEN}, got 'h:70000'"),
    ("targets: [{url: http://h}]\ndefaults: [a]", "defaults: expected a mapping, got a list"),
    (
        "targets: [{url: http://h}]\ndefaults: {name: a}",
        f"defaults.name: unknown key; allowed: {DEFAULTS_KEYS}",
    ),
    (
        "targets: [{url: http://h}, {url: http://i}]\ndefaults: {probe: {interval: soon}}",
        f"defaults.probe.interval: {DURATION}, got 'soon'",
    ),
    (
        "targets: [{url: http://h, name: a}, {url: http://i}, {url: http://i, name: a}]",
        "targets[2].name: 'a' is also the name of targets[0]; give each its own",
    ),
    (
        "targets: [{url: http://h/a}, {url: http://h/b}]",
        "targets[1].name: 'h:80' is also the name of targets[0]; give each its own",
    ),
    (
        "targets: [{url: http://h, basic_auth: {username: u, password: p}}]\ndefaults: {bearer_token: t}",
        "targets[0]: bearer_token and basic_auth exclude each other; keep one of them",
    ),
]

IN_A_FILE = [
    (b"", ": expected a mapping with the key 'targets', got nothing"),
    (b"- a", ": expected a mapping with the key 'targets', got a list"),
    (b"targets:\n  - url: a\n    url: b\n", ":3:5: duplicate key 'url'; keep one"),
    (
        b"a: [1,\nb: 2",
        ":2:5: not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'",
    ),
    (
        b"a: 1\n\tb: 2",
        ":2:1: not YAML: while scanning for the next token, found character '\\t' that cannot start any token",
    ),
    (b"token: *s3cr3t", ":1:8: not YAML: found undefined alias ..."),
    (
        b"token: *it's-s3cr3t",
        ":1:11: not YAML: while scanning an alias, expected alphabetic or numeric character, but found ...",
    ),
    (b"token: !s3cr3t x", ":1:8: not YAML: could not determine a constructor for the tag ..."),
    (
        b"a: 1\n---\nb: 2",
        ":2:1: not YAML: expected a single document in the stream, but found another document",
    ),
    (b"a: 1\nb: \x07", ":2: a control character, which YAML does not allow; remove it"),
    (b"a: \xff", ": not UTF-8 at byte 3; save the file as UTF-8"),
    (b"a: !!int s3cr3t", ": a value does not fit its tag, or is nested too deeply"),
    (b"[" * 5000, ": a value does not fit its tag, or is nested too deeply"),
]


def problems_of(path: Path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path, ENVIRON, in_container=False)
    assert "s3cr3t" not in str(caught.value)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


@pytest.mark.parametrize(("keys", "message"), IN_A_TARGET)
def test_a_mistake_in_a_target_is_named_by_its_path(keys: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(f'targets: [{{url: "http://h:1", {keys}}}]')
    assert problems_of(tmp_path / "v.yml") == (f"targets[0]{message}",)


@pytest.mark.parametrize(("url", "message"), IN_A_URL)
def test_a_url_that_cannot_be_used_is_refused(url: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(f'targets: [{{url: "{url}"}}]')
    assert problems_of(tmp_path / "v.yml") == (f"targets[0].url: {message}",)


@pytest.mark.parametrize(("document", "message"), IN_A_DOCUMENT)
def test_a_mistake_in_the_document_is_named_by_its_path(document: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(document)
    assert problems_of(tmp_path / "v.yml") == (message,)


@pytest.mark.parametrize(("content", "message"), IN_A_FILE)
def test_a_file_that_is_not_a_document_is_refused_with_the_place(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_bytes(content)
    assert problems_of(tmp_path / "v.yml") == (f"{tmp_path / 'v.yml'}{message}",)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    remedy = "check the path and its permissions"
    missing = tmp_path / "none.yml"
    assert problems_of(missing) == (f"{missing}: cannot be read: No such file or directory; {remedy}",)
    assert problems_of(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory; {remedy}",)


def test_defaults_that_are_none_hide_no_mistake_in_a_target(tmp_path: Path) -> None:
    target = "{url: http://h, name: a, basic_auth: {username: u}}"
    (tmp_path / "v.yml").write_text(f"defaults: 5\ntargets: [{target}, {{name: a}}]")
    assert problems_of(tmp_path / "v.yml") == (
        "defaults: expected a mapping, got a number",
        "targets[1].url: missing; it has no default",
        "targets[1].name: 'a' is also the name of targets[0]; give each its own",
    )


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(
        """
        lissen: ":1"
        defaults: {timeout: 1}
        targets:
          - {bakend: vllm}
          - {url: h, probe: {max_tokens: 0}}
        """
    )
    assert problems_of(tmp_path / "v.yml") == (
        "lissen: unknown key; did you mean 'listen'?",
        "defaults.timeout: a duration needs a unit: write 1s (or ms, m, h), not 1",
        "targets[0].bakend: unknown key; did you mean 'backend'?",
        "targets[0].url: missing; it has no default",
        "targets[1].url: expected a URL such as 'http://localhost:8000', got 'h'; put http:// first",
        "targets[1].probe.max_tokens: must be in 1..4096, got 0",
    )
