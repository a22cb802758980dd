"""Credentials, redirects and TLS: what a peer on localhost gets to see, and what a failure is called."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest

from exporter.config import Tls
from exporter.detect import make_reader
from exporter.model import Outcome
from exporter.relay.scrape import new_session
from tests.peers import (
    BASIC,
    BEARER,
    HEADERS,
    PAGE,
    PEM,
    SECRETS,
    free_port,
    http,
    of_status,
    place,
    read,
    request,
    saying,
    server_tls,
    talking,
    target,
)

PAGE_BYTES = PAGE.encode()


class Recorder:
    """Answers with a page, or with a redirect to `location`, and keeps the heads of the requests."""

    def __init__(self, location: str = "") -> None:
        self.location = location
        self.heads: list[str] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await request(reader))
        location, self.location = self.location, ""
        redirect = of_status("307 Go", f"Location: {location}", "Connection: close")
        writer.write(redirect if location else http(PAGE_BYTES))


@pytest.mark.parametrize("access", [BEARER, BASIC, HEADERS], ids=["bearer", "basic", "headers"])
async def test_a_credential_is_sent_but_not_to_the_other_origin_of_a_redirect(access: dict[str, Any]) -> None:
    other = Recorder()
    async with talking(other.talk) as elsewhere:
        first = Recorder(f"{elsewhere}/metrics")
        async with talking(first.talk) as url:
            snapshot = await read(target(url, **access))
    assert snapshot.up
    assert any(secret in first.heads[0] for secret in SECRETS)
    assert len(other.heads) == 1
    assert not any(secret in other.heads[0] for secret in SECRETS)


async def test_a_credential_follows_a_redirect_within_its_origin() -> None:
    peer = Recorder("/elsewhere?a=b")
    async with talking(peer.talk) as url:
        snapshot = await read(target(url, **BEARER))
    assert snapshot.up
    assert peer.heads[1].startswith("GET /elsewhere?a=b HTTP/1.1\r\n")
    assert "Authorization: Bearer tok-en" in peer.heads[1]


async def test_the_failure_after_a_redirect_names_the_place_redirected_to() -> None:
    port = await free_port()
    async with talking(Recorder(f"http://127.0.0.1:{port}/metrics").talk) as url:
        snapshot = await read(target(url, **HEADERS))
    assert snapshot.outcome is Outcome.CONNECT
    assert f"no connection to 127.0.0.1:{port}" in snapshot.detail


async def test_the_text_format_is_asked_for_and_nothing_else() -> None:
    peer = Recorder()
    async with talking(peer.talk) as url:
        await read(target(url, metrics_path="/a/metrics"))
    assert peer.heads[0].startswith("GET /a/metrics HTTP/1.1\r\n")
    assert "Accept: text/plain;version=0.0.4\r\n" in peer.heads[0]
    assert "User-Agent: llm-vitals" in peer.heads[0]


async def test_a_secret_in_a_file_that_is_not_there_is_an_auth_failure_and_nothing_is_sent(tmp_path: Path) -> None:
    peer = Recorder()
    async with talking(peer.talk) as url:
        snapshot = await read(target(url, bearer_token_file=tmp_path / "token"))
    assert snapshot.outcome is Outcome.AUTH
    assert str(tmp_path / "token") in snapshot.detail
    assert peer.heads == []


CA = Tls(ca_file=PEM / "ca.pem")
NAMED = replace(CA, server_name="llm.test")
CLIENT = replace(NAMED, cert_file=PEM / "peer.pem", key_file=PEM / "peer.key")


@pytest.mark.parametrize(
    ("tls", "client_certificate", "why", "remedy"),
    [
        (NAMED, False, "", ""),
        (CLIENT, True, "", ""),
        (Tls(), False, "(self-signed certificate in certificate chain)", "set tls.ca_file"),
        (CA, False, "(IP address mismatch, certificate is not valid for '127.0.0.1'.)", "set tls.server_name"),
        (replace(CA, server_name="a.test"), False, "not valid for 'a.test'", "set tls.server_name"),
    ],
    ids=["right", "right with a client certificate", "untrusted", "another address", "another name"],
)
async def test_a_server_is_verified(tls: Tls, client_certificate: bool, why: str, remedy: str) -> None:
    async with talking(saying(http(PAGE_BYTES)), server_tls(client_certificate)) as url:
        snapshot = await read(target(url, tls=tls))
    if why:
        assert snapshot.outcome is Outcome.TLS
        assert snapshot.detail.startswith(f"the certificate of {place(url)} is not trusted (")
        assert why in snapshot.detail
        assert snapshot.detail.endswith(remedy)
    else:
        assert snapshot.up, snapshot.detail


async def test_a_client_certificate_is_not_shown_to_the_other_origin_of_a_redirect() -> None:
    tls = replace(CLIENT, insecure_skip_verify=True)
    other = Recorder()
    async with talking(other.talk, server_tls(client_certificate=True)) as elsewhere:
        first = Recorder(f"{elsewhere}/metrics")
        async with talking(first.talk, server_tls(client_certificate=True)) as url:
            snapshot = await read(target(url, tls=tls))
    assert (len(first.heads), other.heads) == (1, [])
    assert "does it want tls.cert_file?" in snapshot.detail


OTHER_CA = certifi.contents().partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("backend", ["vllm", "ollama"])
async def test_certificates_that_were_renewed_are_read_again_after_a_failure(backend: str, tmp_path: Path) -> None:
    async def ollama_or_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asks_ollama = (await request(reader)).startswith("GET /api/")
        writer.write(http(b'{"version": "1", "models": []}' if asks_ollama else PAGE_BYTES))

    file = tmp_path / "ca.pem"
    file.write_text(OTHER_CA)
    async with talking(ollama_or_page, server_tls()) as url, new_session() as session:
        which = target(url, backend=backend, tls=replace(NAMED, ca_file=file))
        reader = make_reader(which, session)
        assert (await reader.read(5.0)).outcome is Outcome.TLS
        file.write_bytes((PEM / "ca.pem").read_bytes())
        assert (await reader.read(5.0)).up
        await reader.close()


async def test_a_server_that_misses_a_client_certificate_is_said_to_want_one() -> None:
    async with talking(saying(http(PAGE_BYTES)), server_tls(client_certificate=True)) as url:
        snapshot = await read(target(url, tls=NAMED))
    assert snapshot.outcome in (Outcome.TRUNCATED, Outcome.TLS)
    assert "does it want tls.cert_file?" in snapshot.detail


async def test_https_spoken_to_an_http_server_is_said_to_be_that() -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(of_status("400 Bad Request"))

    async with talking(refusing) as url:
        snapshot = await read(target(url.replace("http:", "https:")))
    assert snapshot.outcome is Outcome.TLS
    assert snapshot.detail.endswith("does the server speak http, not https?")


async def test_http_spoken_to_an_https_server_is_said_to_be_that() -> None:
    async with talking(saying(http(PAGE_BYTES)), server_tls()) as url:
        snapshot = await read(target(url.replace("https:", "http:")))
    assert snapshot.outcome is Outcome.TRUNCATED
    assert snapshot.detail.endswith("does it speak https, not http?")


async def test_a_certificate_file_that_cannot_be_read_is_a_tls_failure(tmp_path: Path) -> None:
    snapshot = await read(target("https://127.0.0.1:1", tls=Tls(ca_file=tmp_path / "ca.pem")))
    assert snapshot.outcome is Outcome.TLS
    assert str(tmp_path / "ca.pem") in snapshot.detail
