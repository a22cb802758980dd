"""How a target is reached: the headers that are sent, TLS against real servers, and text without secrets."""

import base64
import dataclasses
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from exporter.access import AccessError, blank, request_headers, ssl_context
from exporter.config import BasicAuth, Secret, Target, Tls

PEM = Path(__file__).parent / "fixtures/tls"  # peer.pem is for the name llm.test and both ends; ca.pem signed it
REMEDY = "check the path, and that the exporter's user may read it"


def target(url: str = "https://h", **settings: object) -> Target:
    return dataclasses.replace(Target("a", url), **settings)  # type: ignore[arg-type] # any field's type


@pytest.fixture
async def https() -> AsyncIterator[TestServer]:
    """Serve https as llm.test to whoever shows a certificate of the CA."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=PEM / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(PEM / "peer.pem", PEM / "peer.key")
    app = web.Application()
    app.router.add_get("/", hello)
    server = TestServer(app)
    await server.start_server(ssl=context)
    yield server
    await server.close()


async def get_by_aiohttp(target: Target) -> str:
    context = ssl_context(target)
    assert context is not None
    async with (
        aiohttp.ClientSession() as session,
        session.get(target.url, ssl=context, server_hostname=target.tls.server_name) as response,
    ):
        return await response.text()


async def get_by_httpx(target: Target) -> str:
    context = ssl_context(target)
    assert context is not None
    extensions = {"sni_hostname": target.tls.server_name} if target.tls.server_name else {}
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return (await client.get(target.url, extensions=extensions)).text


Get = Callable[[Target], Awaitable[str]]
both_clients = pytest.mark.parametrize("get", [get_by_aiohttp, get_by_httpx])
CLIENT = Tls(cert_file=PEM / "peer.pem", key_file=PEM / "peer.key")
REFUSED = (aiohttp.ClientError, httpx.HTTPError)


@both_clients
async def test_a_server_is_verified_by_its_name_and_shown_the_client_certificate(get: Get, https: TestServer) -> None:
    tls = dataclasses.replace(CLIENT, ca_file=PEM / "ca.pem", server_name="llm.test")
    assert await get(target(str(https.make_url("/")), tls=tls)) == "hello"


@both_clients
@pytest.mark.parametrize(
    "tls",
    [
        pytest.param(dataclasses.replace(CLIENT, server_name="llm.test"), id="the system's authorities do not know it"),
        pytest.param(dataclasses.replace(CLIENT, ca_file=PEM / "ca.pem"), id="its name is not the url's"),
        pytest.param(Tls(ca_file=PEM / "ca.pem", server_name="llm.test"), id="it is shown no certificate"),
    ],
)
async def test_a_server_is_refused_or_refuses_when(get: Get, https: TestServer, tls: Tls) -> None:
    with pytest.raises(REFUSED):
        await get(target(str(https.make_url("/")), tls=tls))


@both_clients
async def test_skipping_verification_accepts_any_name_and_authority(get: Get, https: TestServer) -> None:
    tls = dataclasses.replace(CLIENT, insecure_skip_verify=True)
    assert await get(target(str(https.make_url("/")), tls=tls)) == "hello"


def test_http_has_no_tls_settings() -> None:
    assert ssl_context(target("http://h")) is None


def test_targets_with_the_same_tls_settings_share_what_they_come_to_within_a_thread() -> None:
    shared = ssl_context(target("https://a", tls=CLIENT))
    assert ssl_context(target("https://b", tls=dataclasses.replace(CLIENT))) is shared
    assert (
        ssl_context(target("https://b", tls=dataclasses.replace(CLIENT, cert_file=None, key_file=None))) is not shared
    )
    assert ssl_context(target("https://b")) is ssl_context(target("https://c"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(ssl_context, target("https://a", tls=CLIENT)).result() is not shared


@pytest.mark.parametrize(("key", "name"), [("ca_file", "ca.pem"), ("cert_file", "peer.pem"), ("key_file", "peer.key")])
def test_a_certificate_or_key_that_was_renewed_is_read_again(key: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes((PEM / name).read_bytes())
    renewed = target(tls=dataclasses.replace(CLIENT, **{key: file}))  # type: ignore[arg-type] # any field's type
    first = ssl_context(renewed)
    assert ssl_context(renewed) is first
    os.utime(file, ns=(1, 1))
    second = ssl_context(renewed)
    assert second is not first
    file.unlink()
    with pytest.raises(AccessError):
        ssl_context(renewed)


NONE = Path("/nonexistent/x.pem")
MISSING = f"{NONE}: No such file or directory; {REMEDY}"
CERTIFICATE = "expected a PEM certificate whose key, not encrypted, is in tls.key_file"


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (Tls(ca_file=NONE), f"a: tls.ca_file {MISSING}"),
        (
            Tls(ca_file=PEM / "peer.key"),
            f"a: tls.ca_file {PEM / 'peer.key'}: expected certificates in PEM form",
        ),
        (Tls(cert_file=NONE, key_file=PEM / "peer.key"), f"a: tls.cert_file {MISSING}"),
        (Tls(cert_file=PEM / "peer.pem", key_file=NONE), f"a: tls.key_file {MISSING}"),
        *(
            (
                Tls(cert_file=PEM / cert, key_file=PEM / key),
                f"a: tls.cert_file {PEM / cert}: {CERTIFICATE} {PEM / key}",
            )
            for cert, key in (
                ("peer.pem", "encrypted.key"),
                ("peer.pem", "ca.pem"),
                ("ca.pem", "peer.key"),
                ("peer.key", "peer.key"),
            )
        ),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named_with_the_remedy(tls: Tls, message: str) -> None:
    with pytest.raises(AccessError) as caught:
        ssl_context(target(tls=tls))
    assert str(caught.value) == message


def test_headers_and_credentials_are_sent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" from-file\n")
    headers = (("X-A", Secret("1")),)
    assert request_headers(target()) == {}
    assert request_headers(target(headers=headers, bearer_token=Secret("t"))) == {
        "X-A": "1",
        "Authorization": "Bearer t",
    }
    from_file = request_headers(target(bearer_token_file=tmp_path / "secret"))
    assert from_file == {"Authorization": "Bearer from-file"}
    for basic_auth, pair in (
        (BasicAuth("us\u00e9r", Secret("p:w")), "us\u00e9r:p:w"),
        (BasicAuth("u", password_file=tmp_path / "secret"), "u:from-file"),
    ):
        sent = request_headers(target(basic_auth=basic_auth))["Authorization"]
        assert base64.b64decode(sent.removeprefix("Basic ")).decode() == pair


def test_a_rotated_token_is_used_at_the_next_request(tmp_path: Path) -> None:
    rotating = target(bearer_token_file=tmp_path / "token")
    for token in ("one", "two"):
        (tmp_path / "token").write_text(token)
        assert request_headers(rotating) == {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"No such file or directory; {REMEDY}"),
        (b" \n", "must not be empty"),
        (b"s3cr3t\ns3cr3t", "expected printable ASCII characters without blanks or line breaks"),
        (b"s3cr3t\xff", "expected text in UTF-8"),
    ],
)
def test_a_token_file_that_cannot_be_used_is_named_without_what_it_holds(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(AccessError) as caught:
        request_headers(target(bearer_token_file=file))
    assert str(caught.value) == f"a: bearer_token_file {file}: {message}"
    assert blank("no token is known", target(bearer_token_file=file)) == "no token is known"


def test_every_secret_of_a_target_is_blanked_in_a_text(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("in-file\n")
    headers = (("X-Key", Secret("key")), ("X-Long", Secret("key-and-more")))
    credentials = base64.b64encode(b"u:pass").decode()
    for settings, text, blanked in (
        ({}, "nothing", "nothing"),
        ({"headers": headers}, "X-Key: key, key-and-more", "X-Key: <secret>, <secret>"),
        ({"bearer_token": Secret("a.b")}, "a.b axb", "<secret> axb"),
        ({"bearer_token_file": tmp_path / "secret"}, "is in-file", "is <secret>"),
        ({"bearer_token": Secret("secret")}, "secret", "<secret>"),
        ({"headers": headers, "bearer_token": Secret("t0")}, "t0 key", "<secret> <secret>"),
        ({"basic_auth": BasicAuth("u", Secret("pass"))}, f"u pass {credentials}", "u <secret> <secret>"),
        ({"basic_auth": BasicAuth("u", password_file=tmp_path / "secret")}, "u:in-file", "u:<secret>"),
    ):
        assert blank(text, target(**settings)) == blanked
