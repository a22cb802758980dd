"""The keys of a target that say what it runs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.config import ConfigError, Target, load

SHAPE = '{"num_hidden_layers": 2}'
TYPES = "auto, f32, f16, bf16, fp8, q8_0, q5_1, q5_0, q4_1, q4_0"


def read(tmp_path: Path, keys: str, **environ: str) -> Target:
    (tmp_path / "v.yml").write_text(f'targets: [{{url: "http://h:1", {keys}}}]')
    (target,) = load(tmp_path / "v.yml", environ, in_container=False).targets
    return target


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            "device: NVIDIA H1OO SXM",
            ".device: no device is called 'NVIDIA H1OO SXM'; did you mean 'NVIDIA H100 SXM' or 'NVIDIA H200'",
        ),
        ("devices: 0", ".devices: must be in 1..1024, got 0"),
        ("memory_bandwidth_gb_s: fast", ".memory_bandwidth_gb_s: expected a number of GB/s such as 1008, got 'fast'"),
        ("host_memory_bandwidth_gb_s: 0", ".host_memory_bandwidth_gb_s: must be in 0.1..1e+06, got 0"),
        ("weight_bytes: 16GB", ".weight_bytes: expected a number of bytes such as 16.06e9, got '16GB'"),
        ("active_weight_bytes: true", ".active_weight_bytes: expected a number of bytes such as 16.06e9, got true"),
        (
            "device: NVIDIA L4, memory_bandwidth_gb_s: 300",
            ": device and memory_bandwidth_gb_s exclude each other; keep",
        ),
        ("model_config: no/such.json", ".model_config: cannot read {dir}/no/such.json: No such file or directory"),
        ("model_config: {a: 1}", ".model_config: expected a model's config.json, which has num_hidden_layers"),
        ("model_config: '{'", ".model_config: expected a path, or the text of a config.json; this is no valid JSON"),
        ("model_config: 5", ".model_config: expected a string, got a number"),
        ("kv_cache_type: f8", f".kv_cache_type: expected one of {TYPES}, got 'f8'"),
    ],
)
def test_a_mistake_about_the_hardware_is_named_with_its_remedy(keys: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, keys)
    (problem,) = caught.value.problems
    assert problem.startswith(f"targets[0]{message.format(dir=tmp_path)}")


def test_a_model_config_may_be_a_file_beside_the_configuration_or_its_text_or_yaml(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(SHAPE)
    for keys in ("model_config: config.json", f"model_config: '{SHAPE}'", "model_config: {num_hidden_layers: 2}"):
        assert json.loads(read(tmp_path, keys).model_config or "") == {"num_hidden_layers": 2}


def test_a_changed_model_config_makes_another_target(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(SHAPE)
    before = read(tmp_path, "model_config: config.json")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 3}')
    assert read(tmp_path, "model_config: config.json") != before


def test_environment_variables_may_hold_the_numbers_and_the_device(tmp_path: Path) -> None:
    keys = "device: '${CARD}', devices: '${N}', weight_bytes: '${W}'"
    found = read(tmp_path, keys, CARD="Tesla T4", N="2", W="16060000000")
    assert (found.device, found.devices, found.weight_bytes) == ("NVIDIA T4", 2, 16.06e9)
