"""Requests that no honest client sends, in five families, the same for the same seed.

Most are signed by an enrolled party over just what they hold, so that they reach as deep as they can. Each is
the bytes of one request, and whether its framing is HTTP at all.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from proxy_world import OpenStudy, values_of

from dpdpca_protocol.messages.share import Decline, Withdrawal
from dpdpca_protocol.messages.study_messages import CountAnswer, Opened, SealedComponents, StudyAct
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey, Statement, sign_statement
from dpdpca_runtime.http.signature import RequestSigner

JSON, BYTES = "application/json", "application/octet-stream"
_FORMAT = f'"format":{FORMAT}'.encode()


@dataclass(frozen=True)
class Malformed:
    family: str
    raw: bytes
    is_framed: bool = True


@dataclass(frozen=True)
class _Route:
    key: IdentityKey
    method: str
    path: str
    statement: Statement


class Forge:
    """Makes malformed requests to the proxy of an open study to which one owner has delivered."""

    def __init__(self, study: OpenStudy, seed: int) -> None:
        self.study, self.source = study, random.Random(seed)
        world, path = study.world, study.path
        self.user, self.owner = world.user, world.owners[0]
        self.signers = {key: RequestSigner(key) for key in (self.user, self.owner)}
        self.chunk = study.plain_chunks(values_of(study.d, 5))[0]
        claim = study.claim(self.owner, [self.chunk], 3)
        self.routes = [
            _Route(self.user, "POST", f"{path}/close", StudyAct("close", study.study).sign(self.user)),
            _Route(self.user, "DELETE", path, StudyAct("cancel", study.study).sign(self.user)),
            _Route(self.user, "POST", "/v1/studies", study.statement),
            _Route(
                self.user,
                "POST",
                f"{path}/count",
                CountAnswer(study.study, Digest.of(b""), 5, bytes(world.secret.public.modulus_bytes)).sign(
                    self.user
                ),
            ),
            _Route(
                self.user,
                "PUT",
                f"{path}/opened",
                Opened(study.study, Digest.of(b""), Digest.of(b"")).sign(self.user),
            ),
            _Route(
                self.user,
                "PUT",
                f"{path}/components",
                SealedComponents(study.study, {self.owner.public.party_id: bytes(99)}).sign(self.user),
            ),
            _Route(self.owner, "POST", f"{path}/share/complete", claim),
            _Route(
                self.owner,
                "DELETE",
                f"{path}/share",
                Withdrawal(study.study, self.owner.public.ed25519, 9).sign(self.owner),
            ),
            _Route(
                self.owner,
                "POST",
                f"{path}/decline",
                Decline(study.study, self.owner.public.ed25519, "2026-11-29T08:00:00Z", "no").sign(
                    self.owner
                ),
            ),
        ]

    def families(self) -> dict[str, Callable[[], Malformed]]:
        return {
            "json": self.json,
            "chunk": self.binary,
            "framing": self.framing,
            "signature": self.signature,
            "path": self.path,
        }

    def requests(self, count: int) -> Iterator[Malformed]:
        """`count` requests, the families in turn."""
        makers = list(self.families().values())
        for number in range(count):
            yield makers[number % len(makers)]()

    def signed(
        self,
        key: IdentityKey,
        method: str,
        path: str,
        body: bytes | None = None,
        media_type: str = JSON,
        change: Callable[[dict[str, str]], None] = lambda headers: None,
        created: datetime | None = None,
    ) -> bytes:
        headers = {} if body is None else {"content-type": media_type}
        request = httpx.Request(method, self.study.world.url + path, content=body, headers=headers)
        self.signers[key].sign(request, body, created or datetime.now(UTC))
        lines = dict(request.headers.multi_items())
        change(lines)
        return raw_request(method, path, list(lines.items()), body or b"")

    # JSON grammar and values

    def json(self) -> Malformed:
        route = self.source.choice(self.routes)
        if self.source.random() < 0.5:
            body = self._bad_values(route)
        else:
            body = self._bad_grammar(route.statement.encoded)
        return Malformed("json", self.signed(route.key, route.method, route.path, body))

    def _bad_values(self, route: _Route) -> bytes:
        """A statement with a genuine signature, whose body says something that cannot be."""
        whole = json.loads(route.statement.encoded)
        body = whole["body"]
        names = sorted(body)
        value: Any = self.source.choice(
            [
                None,
                True,
                -1,
                0,
                2**53,
                10**40,
                0.5,
                "",
                "x",
                "0" * 64,
                "A" * 64,
                "é\u202e",
                [],
                {},
                [[]],
                "1" * 9999,
            ]
        )
        match self.source.randrange(4):
            case 0:
                del body[self.source.choice(names)]
            case 1:
                body["unknown"] = value
            case _:
                name = self.source.choice(names)
                if body[name] == value:
                    value = "another"
                body[name] = value
        try:
            return sign_statement(whole["kind"], body, route.key).encoded
        except Exception:  # what cannot be signed canonically is sent as it is
            whole["body"] = body
            return json.dumps(whole).encode()

    def _bad_grammar(self, good: bytes) -> bytes:
        source, at = self.source, self.source.randrange(1, len(good))
        spoilt = [
            good[:at],
            good + b" ",
            b"\xef\xbb\xbf" + good,
            good.decode().encode("utf-16"),
            good[:at] + bytes([source.randrange(256)]) + good[at:],
            good[: at - 1] + bytes([good[at - 1] ^ (1 << source.randrange(8))]) + good[at:],
            b"[" * source.choice([10, 1000, 30000]),
            b'{"a":' * 5000,
            good.replace(b'"body"', b'"body":NaN,"b"', 1),
            good.replace(_FORMAT, _FORMAT + b"e999", 1),
            good.replace(_FORMAT, _FORMAT + b".0", 1),
            good.replace(_FORMAT, _FORMAT + b"," + _FORMAT, 1),
            good.replace(_FORMAT, _FORMAT + b"9" * 5000, 1),
            good.replace(b'"kind":"', b'"kind":"\\ud800', 1),
            good.replace(b'"kind":"', b'"kind":"\\u0000', 1),
            good.replace(b'"kind":"', b'"kind":"\x00', 1),
            good.replace(b":", b": ", 1),
            bytes(source.randrange(256) for _ in range(source.randrange(300))) + b"\xff",
            b"",
            b"null",
            b"[]",
            b"1e999",
            b'"' + b"\\u0041" * 500 + b'"',
        ]
        body = source.choice(spoilt)
        return body if body != good else good[:-1]

    # chunks

    def binary(self) -> Malformed:
        source, study = self.source, self.study
        version, position = 2, 0
        sealed = study.seal(self.owner, self.chunk, version, position)
        width = study.world.secret.public.ciphertext_bytes
        query, place, media_type = f"version={version}", "0", BYTES
        body = sealed
        match source.randrange(9):
            case 0:
                at = source.randrange(len(sealed))
                body = sealed[:at] + bytes([sealed[at] ^ (1 << source.randrange(8))]) + sealed[at + 1 :]
            case 1:
                body = sealed[: source.randrange(len(sealed))]
            case 2:
                body = source.randbytes(source.choice([0, 1, 31, 32, 48, len(sealed), 5000, 70000]))
            case 3:
                bad = source.choice([0, 1, int(study.world.secret.public.modulus), 256**width - 1])
                spoilt = self.chunk[:-width] + bad.to_bytes(width, "big")
                body = study.seal(self.owner, spoilt, version, position)
            case 4:
                spoilt = self.chunk + self.chunk if source.random() < 0.5 else self.chunk[:-1]
                body = study.seal(self.owner, spoilt, version, position)
            case 5:
                query = source.choice(
                    ["", "version=0", "version=-1", "version=99999999999", "version=abc", "version=01",
                     "version=%00", "version=2&version=3", "v=2",
                     "version=2;x", "version=1.0", "version=" + "9" * 2000]
                )  # fmt: skip
            case 6:
                place = source.choice(
                    ["1", "999999999", "-1", "00", "abc", "1e3", "9" * 100, "%30", "0/..", " 0"]
                )
            case 7:
                media_type = source.choice(
                    [
                        "",
                        "text/html",
                        JSON,
                        "multipart/form-data; boundary=x",
                        "application/octet",
                        "a/b/c",
                        "\x01",
                    ]
                )
            case 8:
                body = study.seal(study.world.owners[1], self.chunk, version, position)
        path = f"{study.path}/share/chunks/{place}" + (f"?{query}" if query else "")
        return Malformed("chunk", self._raw_path(self.owner, "PUT", path, body, media_type))

    def _raw_path(
        self, key: IdentityKey, method: str, path: str, body: bytes | None, media_type: str = JSON
    ) -> bytes:
        """Signed where the path can be signed; else as it is, with a signature that does not fit."""
        try:
            return self.signed(key, method, path, body, media_type)
        except Exception:  # httpx takes no such path or header
            lines = [("host", self._host), ("content-length", str(len(body or b"")))]
            return raw_request(method, path, lines, body or b"")

    # framing

    @property
    def _host(self) -> str:
        return self.study.world.url.removeprefix("http://")

    def framing(self) -> Malformed:
        source, host = self.source, self._host.encode()
        head = b"POST /v1/parties HTTP/1.1\r\nhost: " + host + b"\r\ncontent-type: application/json\r\n"
        spoilt = [
            source.randbytes(source.randrange(1, 400)),
            b"\r\n" * source.randrange(1, 20),
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /v1/proxy HTTP/9.9\r\nhost: " + host + b"\r\n\r\n",
            b"GET  /v1/proxy  HTTP/1.1\r\nhost: " + host + b"\r\n\r\n",
            b"GET /v1/proxy\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + source.randbytes(60),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            head + b"content-length: 5\r\n\r\nab",
            head + b"content-length: -1\r\n\r\n",
            head + b"content-length: 1,2\r\n\r\nab",
            head + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
            head + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            head + b"content-length: " + b"9" * 400 + b"\r\n\r\n",
            head + b"transfer-encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
            head + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\nab\r\n",
            head + b"transfer-encoding: gzip\r\n\r\n",
            head + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            head + b"x: " + b"y" * 40_000 + b"\r\n\r\n",
            head + b"".join(b"x%d: y\r\n" % n for n in range(2000)) + b"\r\n",
            head + b"bad header\r\n\r\n",
            head + b"x\x00y: z\r\n\r\n",
            head + b"x: a\x00b\r\n\r\n",
            head + b" folded: line\r\n\r\n",
            head + b"host: other\r\ncontent-length: 0\r\n\r\n",
            head + b"expect: 100-continue\r\ncontent-length: 9\r\n\r\n",
            head + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n",
            b"CONNECT evil:1 HTTP/1.1\r\nhost: " + host + b"\r\n\r\n",
            b"GET http://evil/v1/studies HTTP/1.1\r\nhost: " + host + b"\r\n\r\n",
            b"GET /v1/studies HTTP/1.1\nhost: " + host + b"\n\n",
            b"GET /v1/studies HTTP/1.0\r\n\r\n",
            b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: " + host + b"\r\n\r\n",
        ]
        body = source.choice(spoilt)
        if source.random() < 0.3:
            at = source.randrange(len(body))
            body = body[:at] + source.randbytes(1) + body[at + 1 :]
        return Malformed("framing", body, is_framed=False)

    # signature headers

    def signature(self) -> Malformed:
        source = self.source
        route = source.choice(self.routes)
        created = datetime.now(UTC)
        if source.random() < 0.1:
            created += timedelta(seconds=source.choice([-1, 1]) * source.randrange(400, 10**6))
        body = route.statement.encoded

        def change(headers: dict[str, str]) -> None:
            name = source.choice(["signature", "signature-input", "content-digest", "host", "content-type"])
            value = headers[name]
            at = source.randrange(len(value))
            spoilt = [
                None,
                "",
                value[:at],
                value[:at] + "\x7f" + value[at:],
                value[:at] + source.choice('aA0=";,:() ') + value[at + 1 :],
                value + value,
                value.replace("sig1", "sig2"),
                value.replace("created=", "created=-"),
                value.replace("created=", "created=9999999999999999999"),
                value.replace("alg=", 'expires="x";alg='),
                value.replace("ed25519", "hmac-sha256"),
                value.replace('"@method"', '"@method" "@method"'),
                value.replace('"@method"', '"@status"'),
                value.replace('"@method"', ""),
                value.replace("nonce=", "nonce=x"),
                value.replace("keyid=", "keyid=x"),
                value.replace("sha-256", "md5"),
                ":" * 500,
                "(" * 500,
                "é" * 50,
            ]
            new = source.choice(spoilt)
            if new is None or new == value:
                del headers[name]
            else:
                headers[name] = new

        if abs(created - datetime.now(UTC)) > timedelta(seconds=350):
            raw = self.signed(route.key, route.method, route.path, body, created=created)
        else:
            raw = self.signed(route.key, route.method, route.path, body, change=change)
        return Malformed("signature", raw)

    # paths and queries

    def path(self) -> Malformed:
        source, study = self.source, self.study.study.hex()
        pieces = [
            "v1", "studies", study, study.upper(), study[:-1], "0" * 64, "..", ".", "", "%2e%2e", "%00",
            "%ff", "%", "share", "chunks", "0", "manifest",
            "release", "count", "events%0a", "transcript", "a" * 3000, "é",
            "\\", "parties", "docs", "openapi.json", "proxy", "{study}", "~", ";x=1", "v1%2fstudies",
        ]  # fmt: skip
        path = "/" + "/".join(source.choice(pieces) for _ in range(source.randrange(1, 7)))
        if source.random() < 0.4:
            path += "?" + source.choice(
                ["", "?", "x=1", "version=1", "a[]=%00", "&&&", "x=" + "y" * 3000, "%", "\x7f"]
            )
        method = source.choice(
            [
                "GET",
                "POST",
                "PUT",
                "DELETE",
                "PATCH",
                "OPTIONS",
                "HEAD",
                "TRACE",
                "get",
                "FOO",
                "PROPFIND",
                "G\x7fT",
            ]
        )
        key = source.choice([self.user, self.owner])
        body = source.choice([None, b"{}", b"x" * 100])
        if source.random() < 0.5:
            return Malformed("path", self._raw_path(key, method, path, body))
        lines = [("host", self._host)] + ([("content-length", str(len(body)))] if body else [])
        return Malformed("path", raw_request(method, path, lines, body or b""))


def raw_request(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape") + body
