"""Ways to put one request on a socket, from proper to hostile, and what came back."""

import contextlib
import json
import random
import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

TIMEOUT = 20.0


@dataclass(frozen=True)
class Reply:
    """``status`` is None where the server closed without an answer."""

    status: int | None
    body: bytes

    @property
    def json(self) -> object:
        return json.loads(self.body)


@dataclass(frozen=True)
class Message:
    """One request as bytes. ``strict`` ones are proper HTTP and must be answered."""

    method: str
    path: str
    body: bytes
    headers: tuple[str, ...] = ("Content-Type: application/json",)

    def head(self, *extra: str) -> bytes:
        lines = (f"{self.method} {self.path} HTTP/1.1", "Host: x", *self.headers, *extra)
        return "\r\n".join((*lines, "Connection: close", "", "")).encode("latin-1", "replace")

    def plain(self) -> bytes:
        return self.head(f"Content-Length: {len(self.body)}") + self.body

    def chunked(self, rng: random.Random) -> bytes:
        parts, at = [], 0
        while at < len(self.body):
            size = rng.choice((1, 7, 4096, 1 << 16))
            part = self.body[at : at + size]
            extension = rng.choice((b"", b";a=b"))
            parts.append(b"%x%s\r\n%s\r\n" % (len(part), extension, part))
            at += size
        trailer = rng.choice((b"", b"X-Trailer: 1\r\n"))
        return (
            self.head("Transfer-Encoding: chunked") + b"".join(parts) + b"0\r\n" + trailer + b"\r\n"
        )


def connect(port: int, receive_buffer: int | None = None) -> socket.socket:
    link = socket.socket()
    if receive_buffer is not None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    link.settimeout(TIMEOUT)
    link.connect(("127.0.0.1", port))
    return link


def exchange(port: int, raw: bytes, half_close: bool = False) -> Reply:
    """Send everything, read to the end. A peer that hangs is an error, one that closes is not."""
    with connect(port) as link:
        with contextlib.suppress(OSError):  # refused before everything was sent
            link.sendall(raw)
            if half_close:
                link.shutdown(socket.SHUT_WR)
        return parse(b"".join(_received(link)))


def _received(link: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(ConnectionError):
        while piece := link.recv(1 << 16):
            yield piece


def parse(raw: bytes) -> Reply:
    """The last answer in ``raw`` that is not an interim one."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if not head:
        return Reply(None, b"")
    status = int(head.split(None, 2)[1])
    if status == 100:
        return parse(rest)
    if b"transfer-encoding: chunked" in head.lower():
        rest = b"".join(_chunks(rest))
    return Reply(status, rest)


def _chunks(raw: bytes) -> Iterator[bytes]:
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        n = int(size, 16)
        yield raw[:n]
        raw = raw[n + 2 :]


def bad_heads(message: Message, rng: random.Random) -> bytes:
    """A request whose head lies, is not HTTP, or is merely unusual."""
    body, n = message.body, len(message.body)
    length = f"Content-Length: {n}"
    first = f"{message.method} {message.path} ".encode("latin-1", "replace")
    packed = zlib.compress(b"0" * rng.choice((10, 1 << 20)))
    tricks = (
        message.head(f"Content-Length: {n + 5}") + body,
        message.head("Content-Length: 5, 5") + body,
        message.head("Content-Length: -1") + body,
        message.head("Content-Length: 99999999999999999999") + body,
        message.head(length, "Content-Length: 1") + body,
        message.head(length, "Transfer-Encoding: chunked") + body,
        message.head("Transfer-Encoding: chunked, gzip") + body,
        message.head("Transfer-Encoding: chunked") + b"zz\r\n" + body,
        message.head("Transfer-Encoding: chunked") + b"ffffffffffffffff\r\n" + body,
        message.head(length, "Expect: 100-continue") + body,
        message.head(length, "Expect: a-miracle") + body,
        message.head(length, "Content-Encoding: gzip") + body,
        message.head(f"Content-Length: {len(packed)}", "Content-Encoding: deflate") + packed,
        message.head(length, "Content-Type: multipart/form-data; boundary=x") + body,
        message.head(length, "X-Long: " + "a" * 20_000) + body,
        message.head(length, *(f"X-{i}: {i}" for i in range(300))) + body,
        message.head(length, "Authorization: Bearer \xe9\xff", "X-Api-Key: \x01") + body,
        message.head(length, "Origin: \x22><script>", "Cookie: a=b; a") + body,
        message.head(length, "X: a\r\n folded") + body,
        message.head(length, "Upgrade: websocket", "Connection: Upgrade") + body,
        first + b"HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % n + body,
        first + b"HTTP/9.9\r\n\r\n",
        first + b"HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
        first.replace(b"/", b"http://other.example/", 1) + b"HTTP/1.1\r\nConnection: close\r\n\r\n",
        first[:-1] + b"%00%ff%2e%2e/..;/ HTTP/1.1\r\nConnection: close\r\n\r\n",
        first[:-1] + b"?" + b"a" * 9_000 + b" HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\r\n\r\n\r\n" + message.plain(),
        message.head("Content-Length: 0").replace(b"\r\n", b"\n"),
        rng.randbytes(500),
    )
    return rng.choice(tricks)
