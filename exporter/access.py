"""How to reach a target with its credentials: headers and TLS, for aiohttp and httpx alike."""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
import threading
from pathlib import Path

from exporter import values
from exporter.settings import BasicAuth, Target, Tls
from exporter.values import Reader, Secret


class AccessError(Exception):
    """A credential or certificate that cannot be used: one line with the target, the file and the remedy."""


def request_headers(target: Target) -> dict[str, str]:
    """Return the headers of a request to the target, credentials included.

    The file of a token or password is read at each call, so that a rotated secret is used at once; it is
    small and local, and the read is not asynchronous.  Raise AccessError.
    """
    headers = {name: value.reveal() for name, value in target.headers}
    if token := _bearer_token(target):
        headers["Authorization"] = f"Bearer {token.reveal()}"
    elif target.basic_auth is not None:
        password = _password(target, target.basic_auth)
        headers["Authorization"] = f"Basic {_basic_credentials(target.basic_auth, password)}"
    return headers


class _Contexts(threading.local):
    """TLS contexts by settings, with the times at which their files were changed; of each thread its own.

    A context takes about 1 MB and tens of milliseconds to make, in which nothing else happens; httpx writes to it at
    each connection, so threads must not share one.
    """

    def __init__(self) -> None:
        self.made: dict[Tls, tuple[tuple[int | None, ...], ssl.SSLContext]] = {}


_contexts = _Contexts()


def ssl_context(target: Target) -> ssl.SSLContext | None:
    """Return the TLS settings for an https target, None for http; made anew when one of their files has changed.

    `tls.server_name` is not part of it: give it to aiohttp as `server_hostname=`, to httpx as
    `extensions={"sni_hostname": ...}`.  Raise AccessError.
    """
    if not target.url.startswith("https:"):
        return None
    changed = tuple(map(_changed_at, (target.tls.ca_file, target.tls.cert_file, target.tls.key_file)))
    made = _contexts.made.get(target.tls)
    if made is None or made[0] != changed:
        made = _contexts.made[target.tls] = changed, _make_context(target)
    return made[1]


def _changed_at(path: Path | None) -> int | None:
    try:
        return None if path is None else path.stat().st_mtime_ns
    except OSError:
        return None  # Reading it says why.


def _make_context(target: Target) -> ssl.SSLContext:
    tls = target.tls
    if tls.ca_file is not None:
        _read(target, "tls.ca_file", tls.ca_file)
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except ssl.SSLError:
        raise _error(target, "tls.ca_file", tls.ca_file, "expected certificates in PEM form") from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None and tls.key_file is not None:
        _load_client_certificate(target, context, tls.cert_file, tls.key_file)
    return context


def blank(text: str, target: Target) -> str:
    """Return the text with every secret of the target that occurs in it replaced by `<secret>`.

    A secret in a file is the one that the file holds now.
    """
    secrets = {value.reveal() for _, value in target.headers}
    with contextlib.suppress(AccessError):
        if token := _bearer_token(target):
            secrets.add(token.reveal())
    with contextlib.suppress(AccessError):
        if target.basic_auth is not None:
            password = _password(target, target.basic_auth)
            secrets |= {password.reveal(), _basic_credentials(target.basic_auth, password)}
    if not secrets:
        return text
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), str(Secret("")), text)


def _bearer_token(target: Target) -> Secret | None:
    if target.bearer_token_file is not None:
        return _secret_in_file(target, "bearer_token_file", target.bearer_token_file, values.token)
    return target.bearer_token


def _password(target: Target, basic_auth: BasicAuth) -> Secret:
    if basic_auth.password_file is not None:
        return _secret_in_file(target, "basic_auth.password_file", basic_auth.password_file, values.secret)
    return basic_auth.password or Secret("")


def _basic_credentials(basic_auth: BasicAuth, password: Secret) -> str:
    return base64.b64encode(f"{basic_auth.username}:{password.reveal()}".encode()).decode()


def _secret_in_file(target: Target, key: str, path: Path, reader: Reader) -> Secret:
    content = _read(target, key, path)
    try:
        secret: Secret = reader(content.decode().strip())
    except UnicodeDecodeError:
        raise _error(target, key, path, "expected text in UTF-8") from None
    except ValueError as error:
        raise _error(target, key, path, str(error)) from None
    return secret


def _load_client_certificate(target: Target, context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _read(target, "tls.cert_file", cert)
    _read(target, "tls.key_file", key)
    try:
        # A password that is given, even a wrong one, keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(cert, key, password="unused")  # noqa: S106
    except ssl.SSLError:
        expected = f"expected a PEM certificate whose key, not encrypted, is in tls.key_file {key}"
        raise _error(target, "tls.cert_file", cert, expected) from None


def _read(target: Target, key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        remedy = "check the path, and that the exporter's user may read it"
        raise _error(target, key, path, f"{error.strerror}; {remedy}") from None


def _error(target: Target, key: str, path: Path | None, message: str) -> AccessError:
    return AccessError(f"{target.name}: {key} {path}: {message}")
