"""What the environment alone comes to, and the addresses that the exporter may listen on."""

import pytest

from exporter.config import Config, ConfigError, Listen, Secret, Target, load, load_one, parse_listen


def test_the_environment_alone_names_the_targets() -> None:
    environ = {"VLLM_URL": "http://gpu1:8000/v1", "OLLAMA_URL": " http://gpu2:11434/ ", "VLLM_API_KEY": "k\n"}
    assert load(None, environ, in_container=True) == Config(
        Listen("127.0.0.1", 10434),
        (
            Target("vllm", "http://gpu1:8000", "vllm", bearer_token=Secret("k")),
            Target("ollama", "http://gpu2:11434", "ollama"),
        ),
    )


def test_the_environment_may_name_the_models_to_probe() -> None:
    for urls in ({"VLLM_URL": "http://a:1", "OLLAMA_URL": "http://b:2"}, {}):
        config = load(None, {**urls, "PROBE_MODELS": " llama3.2:3b, ,qwen3:8b "}, in_container=False)
        assert [target.probe.models for target in config.targets] == [("llama3.2:3b", "qwen3:8b")] * 2


def test_several_servers_in_one_variable_are_called_by_host_and_port() -> None:
    config = load(None, {"VLLM_URL": "http://a:1,http://b,", "OLLAMA_URL": "http://c:3"}, in_container=False)
    assert [(target.name, target.url, target.backend) for target in config.targets] == [
        ("a:1", "http://a:1", "vllm"),
        ("b:80", "http://b", "vllm"),
        ("ollama", "http://c:3", "ollama"),
    ]


def test_mistakes_in_the_environment_name_the_variable_and_show_no_secret() -> None:
    environ = {
        "VLLM_URL": "h:1,http://u:s3cr3t@h,http://x:1/a,http://x:1/b",
        "OLLAMA_URL": "$X",
        "VLLM_API_KEY": "two s3cr3t",
    }
    with pytest.raises(ConfigError) as caught:
        load(None, environ, in_container=False)
    assert caught.value.problems == (
        "VLLM_API_KEY: expected printable ASCII characters without blanks or line breaks",
        "VLLM_URL: expected a URL such as 'http://localhost:8000', got 'h:1'; put http:// first",
        "VLLM_URL: credentials do not belong in a URL; set basic_auth in the configuration file",
        "VLLM_URL: x:1 is there twice; only a configuration file can name both",
        "OLLAMA_URL: expected a URL such as 'http://localhost:8000', got '$X'; put http:// first",
    )


HERE = [("vllm", "http://127.0.0.1:8000", "vllm"), ("ollama", "http://127.0.0.1:11434", "ollama")]
DOCKER_HOST = [
    ("vllm-host", "http://host.docker.internal:8000", "vllm"),
    ("ollama-host", "http://host.docker.internal:11434", "ollama"),
]


@pytest.mark.parametrize(("in_container", "places"), [(False, HERE), (True, HERE + DOCKER_HOST)])
def test_without_any_configuration_the_usual_places_are_candidates(
    in_container: bool, places: list[tuple[str, str, str]]
) -> None:
    config = load(None, {"VLLM_URL": "", "OLLAMA_URL": " , ", "VLLM_API_KEY": ""}, in_container)
    assert config.discovered
    assert [(target.name, target.url, target.backend) for target in config.targets] == places


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        (":10434", Listen("", 10434)),
        ("127.0.0.1:80", Listen("127.0.0.1", 80)),
        ("[::1]:10434", Listen("::1", 10434)),
        ("localhost:0", Listen("localhost", 0)),
    ],
)
def test_an_address_to_listen_on_is_host_and_port(text: str, listen: Listen) -> None:
    assert parse_listen(text) == listen


@pytest.mark.parametrize("text", ["", "80", "h:", "h:65536", "h:-1", "::1:80", "[::1]", "h h:1", "http://h:1"])
def test_any_other_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected ADDR:PORT such as"):
        parse_listen(text)


@pytest.mark.parametrize(("which", "shown"), [("http://u:s3cr3t@h:1", "http://h:1"), ("u:s3cr3t@h:1", "h:1")])
def test_a_url_on_the_command_line_that_holds_a_credential_is_refused_without_it(which: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_one(which, None, {})
    assert str(caught.value).startswith(f"{shown}: credentials do not belong in a URL; ")
    assert "s3cr3t" not in str(caught.value)
