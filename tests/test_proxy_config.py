"""Mistakes in a proxy's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.config import ConfigError, load

TWO = "targets: [{{url: 'http://a:1', proxy: {{listen: {}}}}}, {{url: 'http://b:1', proxy: {{listen: {}}}}}]"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (TWO.format("127.0.0.1:5", "127.0.0.1:5"),
         "targets[1].proxy.listen: 127.0.0.1:5 is also the address of targets[0].proxy.listen; give each its own"),
        (TWO.format("127.0.0.1:5", "0.0.0.0:5"),
         "targets[1].proxy.listen: 0.0.0.0:5 is also the address of targets[0].proxy.listen; give each its own"),
        (TWO.format("':5'", "'[::1]:5'"),
         "targets[1].proxy.listen: [::1]:5 is also the address of targets[0].proxy.listen; give each its own"),
        ("targets: [{url: 'http://a:1', proxy: {listen: 127.0.0.1:10434}}]",
         "targets[0].proxy.listen: 127.0.0.1:10434 is also the address of listen; give each its own"),
        ("targets: [{url: 'http://localhost:11434', proxy: {listen: ':11434'}}]",
         "targets[0].proxy.listen: :11434 is where the target itself is; choose another port"),
        ("targets: [{url: 'http://a:1', proxy: {listen: 11435}}]",
         "targets[0].proxy.listen: expected ADDR:PORT such as 127.0.0.1:10434, [::1]:10434 or :10434, got 11435"),
        ("targets: [{url: 'http://a:1', proxy: {listen: ':5', slots: 0}}]",
         "targets[0].proxy.slots: must be in 1..4096, got 0"),
    ],
)  # fmt: skip
def test_a_mistake_about_a_proxy_is_named_by_its_path(document: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(document)
    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "v.yml", {}, in_container=False)
    assert raised.value.problems == (problem,)


@pytest.mark.parametrize("addresses", [("127.0.0.1:5", "127.0.0.2:5"), ("':0'", "':0'"), ("':5'", "':6'")])
def test_addresses_that_differ_are_no_mistake(addresses: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "v.yml").write_text(TWO.format(*addresses))
    assert len(load(tmp_path / "v.yml", {}, in_container=False).targets) == 2
