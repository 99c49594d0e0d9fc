"""What arrives at a server's sockets and is no proper request: raw bytes, no client library."""

import contextlib
import gzip
import json
import random
import re
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from servers import received, running
from small_models import write_small_model

from bertworks.tasks.conll import tag_labels

LIMIT = 20_000  # bytes of a body
SECRETS = ("Traceback", ".py", "/tmp", "/work", "bertworks.")
FILL = {"input": "the [MASK]", "model": "plain"}
JSON = b"Content-Type: application/json\r\nConnection: close\r\n"
PATHS = ("/v1/fill", "/v1/embeddings", "/v1/classify", "/v1/tag", "/v1/answer", "/v1/choose", "/v1/nsp",
         "/v1/features", "/v1/attend", "/v1/tokenize")  # fmt: skip
BODIES = {
    "/v1/fill": FILL | {"top_k": 2, "targets": ["cat"], "truncate": True},
    "/v1/embeddings": {"model": "plain", "input": ["a"], "encoding_format": "base64", "dimensions": 3, "user": "me",
                       "truncate": True, "pooling": "mean", "normalize": True, "prompt": None},
    "/v1/classify": {"input": ["the cat"], "pair": None, "model": "classes"},
    "/v1/tag": {"input": "the cat", "units": "word", "model": "tags"},
    "/v1/answer": {"question": "a", "context": "the cat", "top_k": 2, "threshold": 0.5, "model": "spans"},
    "/v1/choose": {"context": "a", "endings": ["the", "cat"], "model": "endings"},
    "/v1/nsp": {"input": "a", "following": "b", "truncate": True, "model": "plain"},
    "/v1/features": {"input": "a", "layers": [1], "truncate": True, "model": "plain"},
    "/v1/attend": {"input": "a", "pair": "b", "layers": "all", "truncate": True, "model": "plain"},
    "/v1/tokenize": {"input": "a", "pair": "b", "model": "plain"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, labels = tmp_path_factory.mktemp("models"), list(tag_labels(("PER", "LOC")))
    return [
        write_small_model(root / "plain"),
        write_small_model(root / "classes", {"classify": 3}, labels=["x", "y", "z"]),
        write_small_model(root / "tags", {"tag": len(labels)}, labels=labels),
        write_small_model(root / "spans", {"span": 2}),
        write_small_model(root / "endings", {"choose": 1}),
    ]


@pytest.fixture(scope="module")
def server(folders):
    limits = [f"body={LIMIT}", "inputs=32", "tokens=512", "slow_seconds=1", "chars=10000"]
    with running(*folders, limits=limits) as server:
        yield server


@pytest.fixture(autouse=True)
def _still_well(server):
    yield
    assert server.ask("/v1/fill", FILL)[0] == 200


def post(body, *, path=b"/v1/fill", headers=b"", length=None):
    length = len(body) if length is None else length
    head = b"POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n%s\r\n" % (path, JSON, length, headers)
    return head + body


def chunked(*parts, end=b"0\r\n\r\n"):
    head = b"POST /v1/fill HTTP/1.1\r\nHost: a\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def parsed(answer):
    """The answers in some bytes: (status, the body's value)."""
    found = []
    while answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        found.append((int(head.split()[1]), json.loads(rest[:length])))
        assert b"application/json" in head
        answer = rest[length:]
    return found


def refused(answer, *statuses):
    """Check that bytes are one error in the server's form, which gives nothing away; returns its message."""
    [(status, body)] = parsed(answer)
    assert status in statuses, body
    assert body["error"]["status"] == status
    assert not any(secret in str(body) for secret in SECRETS), body
    return body["error"]["message"]


def sized(length):
    """A request for guesses whose body has so many bytes."""
    return (json.dumps(FILL)[:-1] + " " * (length - len(json.dumps(FILL))) + "}").encode()


def test_h1_bodies_beyond_the_limit(server, grown):
    """H1"""
    too_much = sized(LIMIT + 1)
    assert "limit `body`" in refused(server.send(post(too_much)), 413)
    assert "limit `body`" in refused(server.send(chunked(too_much)), 413)
    assert "limit `body`" in refused(
        server.send(chunked(*(too_much[at : at + 999] for at in range(0, 20_001, 999)))), 413
    )
    assert refused(server.send(post(b"", length=10**15)), 413)
    refused(server.send(post(b"{", length=100)), 408)  # the rest never comes
    answers = parsed(server.send(post(sized(200), length=100)))  # the rest is taken for a request
    assert [status for status, _ in answers] in ([400], [400, 400])
    many = b"x" * (50 << 20)
    before = grown()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(post(b"", length=len(many)))
            for at in range(0, len(many), 65_536):
                connection.sendall(memoryview(many)[at : at + 65_536])
        assert at < 20 << 20  # the connection was closed long before; the system's own buffers took some megabytes
        refused(received(connection), 413)
    assert grown() - before < 4 << 20


def test_h2_a_body_of_exactly_the_limit(server):
    """H2"""
    assert parsed(server.send(post(sized(LIMIT)) + b""))[0][0] == 200
    assert parsed(server.send(chunked(sized(LIMIT))))[0][0] == 200


def test_h3_too_many_inputs_tokens_and_characters(server):
    """H3: the limit and the value are named."""

    def message(path, **body):
        status, answer, _ = server.ask(path, body)
        assert status == 422
        return answer["error"]["message"]

    assert "33 inputs; at most 32" in message("/v1/fill", model="plain", input=["the [MASK]"] * 33)
    assert "has 21 tokens" in message("/v1/features", model="plain", input="cat " * 19)
    assert "576 tokens; at most 512" in message("/v1/embeddings", model="plain", input=["cat " * 16] * 32)
    assert "5,001 characters; at most 5,000" in message("/v1/features", model="plain", input="a" * 5_001)
    assert "10,001 characters; at most 10,000" in message("/v1/tag", model="tags", input="a" * 10_001)
    guesses = message("/v1/fill", model="plain", input=["[MASK] " * 16] * 20, top_k=1_000)
    assert "320,000 guesses; at most 131,072" in guesses
    twice = message("/v1/nsp", model="plain", input=["the cat"] * 32, following="a" * 4_000, truncate=True)
    assert "characters together; at most 20,000" in twice


@pytest.mark.parametrize(
    ("statuses", "data"),
    {
        "a header of a megabyte": ((431,), b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n"),
        "a whole header of 20 kB": ((431,), b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"),
        "10,000 headers": ((431,), b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"),
        "200 headers": ((431,), b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
        "an address of 100 kB": ((414, 431), b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
        "an address of 10 kB": ((414,), b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
        "an unknown method": ((405,), b"BREW /v1/fill HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
        "no method": ((400,), b" / HTTP/1.1\r\nHost: a\r\n\r\n"),
        "HTTP/0.9": ((400,), b"GET /\r\n\r\n"),
        "HTTP/2": ((505,), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        "TLS": ((400,), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n\r\n"),
        "no host": ((400,), b"GET / HTTP/1.1\r\n\r\n"),
        "a line feed in a value": ((400,), b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
        "a zero in a value": ((400,), b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        "a space in a name": ((400,), b"GET / HTTP/1.1\r\nHost: a\r\nX y: a\r\n\r\n"),
        "two lengths": ((400,), post(b"{}", headers=b"Content-Length: 3\r\n")),
        "a length below zero": ((400,), post(b"{}", length=-1)),
        "a length that is none": ((400,), post(b"{}").replace(b"Length: 2", b"Length: 0x2")),
        "a length and chunks": ((400,), chunked(b"{}").replace(b"Host: a", b"Host: a\r\nContent-Length: 5")),
        "another transfer encoding": ((400, 501), chunked(b"{}").replace(b"chunked", b"gzip, chunked")),
        "two transfer encodings": (
            (400, 501), chunked(b"{}").replace(b"Host: a", b"Host: a\r\nTransfer-Encoding: identity")
        ),
        "nothing but zeros": ((400, 431), b"\0" * 40_000),
    }.values(),
    ids=lambda value: "" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_h7_headers(server, statuses, data):
    """H7: one answer, of one request, and the connection is closed."""
    refused(server.send(data), *statuses)


def test_h7_a_second_request_inside_a_first_is_not_heard(server):
    """H7: request smuggling."""
    inner = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    both = chunked(end=b"0\r\n\r\n" + inner).replace(b"Host: a\r\n", b"Host: a\r\nContent-Length: 5\r\n", 1)
    refused(server.send(both), 400)
    refused(server.send(post(b"", headers=b"Transfer-Encoding: xchunked\r\n", length=0) + inner), 400, 501)


BAD_JSON = {
    "nested": b"[" * 100_000,
    "nested objects": b'{"input":' * 30_000,
    "a long number": b'{"input": "a", "top_k": ' + b"9" * 5_000 + b"}",
    "NaN": b'{"question": "a", "context": "b", "threshold": NaN}',
    "infinity": b'{"question": "a", "context": "b", "threshold": -Infinity}',
    "too large": b'{"question": "a", "context": "b", "threshold": 1e400}',
    "half a surrogate": b'{"input": "\\ud800"}',
    "BOM": b'\xef\xbb\xbf{"input": "a"}',
    "UTF-16": '{"input": "a"}'.encode("utf-16"),
    "no UTF-8": b'{"input": "\xff\xfe"}',
    "a zero": b'{"input": "a"}\0',
    "trailing": b'{"input": "a"} x',
    "two values": b'{"input": "a"}{"input": "a"}',
    "a comment": b'{"input": "a"} // a',
    "half": b'{"input": "a',
    "nothing": b"",
    "spaces": b"   ",
    "null": b"null",
    "a list": b"[]",
    "a text": b'"a"',
    "a number": b"1",
    "true": b"true",
    "no field": b"{}",
    "single quotes": b"{'input': 'a'}",
    "an unknown field": b'{"input": "a", "inputs": "a"}',
    "a thousand unknown fields": json.dumps({f"f{n}": n for n in range(1_000)}).encode(),
    "a thousand wrong items": json.dumps({"input": [1] * 1_000}).encode(),
    "a control character": b'{"input": "a\nb"}',
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_h8_almost_json(server, name):
    """H8"""
    for path in (b"/v1/fill", b"/v1/answer"):
        message = refused(server.send(post(BAD_JSON[name][:LIMIT], path=path)), 400)
        assert len(message) < 1_600


WRONG = (None, True, -1, 10**30, 1.5, "", "x" * 300, [], {}, [[]], [None], [1, "a"], [["a"], "a"], {"a": 1}, "\u0000")


@pytest.mark.parametrize("path", PATHS)
def test_h8_wrong_types_in_each_field(server, path, record_property):
    """H8"""
    trials = 0
    for field, right in BODIES[path].items():
        for wrong in WRONG:
            status, answer, _ = server.ask(path, BODIES[path] | {field: wrong})
            assert status in (200, 400, 404, 422), (field, wrong, answer)
            if status == 400:
                assert field in answer["error"]["message"], (field, wrong, answer)
            if not (wrong is None or isinstance(wrong, type(right)) or (field, wrong) == ("threshold", -1)):
                assert status != 200 or isinstance(wrong, int | str | list | float), (field, wrong)
            trials += 1
    record_property("trials", trials)


def test_h8_a_million_keys(folders):
    """H8"""
    body = b"{" + b",".join(b'"%x":1' % number for number in range(1_000_000)) + b"}"
    with running(folders[0], limits=["body=20000000"]) as server:
        begun = time.perf_counter()
        assert "1,000,000 fields" in refused(server.send(post(body)), 400)
        items = b'{"input": [' + b"1," * 1_000_000 + b"1]}"
        assert "input.0" in refused(server.send(post(items)), 400)
        assert time.perf_counter() - begun < 20


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x", "GZIP", "identity, gzip"])
def test_h9_compressed_bodies(server, encoding):
    """H9"""
    bomb = gzip.compress(b" " * 1_000_000)
    head = b"Content-Encoding: %s\r\n" % encoding.encode()
    assert "Content-Encoding" in refused(server.send(post(bomb, headers=head)), 415)
    refused(server.send(post(bomb)), 400)
    assert parsed(server.send(post(json.dumps(FILL).encode(), headers=b"Content-Encoding: identity\r\n")))[0][0] == 200


def test_h10_bodies_in_crumbs(folders):
    """H10: 3 MB in chunks of one byte."""
    with running(folders[0], limits=["slow_seconds=2"]) as server:
        crumbs = chunked(end=b"1\r\n \r\n" * 3_000_000)
        begun = time.process_time()  # also the client's
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(crumbs)
            assert "too small chunks" in refused(received(connection), 400)
        assert time.process_time() - begun < 1
        assert parsed(server.send(chunked(*(b"%c" % byte for byte in json.dumps(FILL).encode()))))[0][0] == 200


@pytest.mark.parametrize(
    ("statuses", "end"),
    [((408, 413), b"8000000000000000\r\n{}"), ((400,), b"-1\r\n{}\r\n"), ((400,), b"zz\r\n{}\r\n0\r\n\r\n"),
     ((408,), b"2\r\n{}\r\n"), ((400,), b"2\r\n{}x\r\n0\r\n\r\n"), ((400,), b"f" * 60 + b"\r\n{}"),
     ((400, 431), b"2;" + b"a" * 100_000 + b"\r\n{}\r\n0\r\n\r\n")],
)  # fmt: skip
def test_h10_chunks_that_lie(server, statuses, end):
    """H10"""
    refused(server.send(chunked(end=end)), *statuses)


KEYS = ("secret-one", "secret-two")


def test_h16_keys_on_every_route_but_health(folders, record_property):
    """H16: all routes of the application, by its own list; wrong, empty, long and almost right keys."""
    with running(folders[0], keys=KEYS) as server:
        document = server.ask("/openapi.json", key=KEYS[0])[1]
        routes = [(path, method.upper()) for path, methods in document["paths"].items() for method in methods]
        assert len(routes) >= 15
        wrong = ["", "Bearer", "Bearer ", "Bearer x", "secret-on", "secret-one2", "Basic secret-one", "\xe9",
                 "Bearer secret-one secret-one", "x" * 10_000, "secret-ONE"]  # fmt: skip
        for path, method in [
            *routes,
            ("/openapi.json", "GET"),
            ("/", "GET"),
            ("/", "POST"),
            ("/nothing", "GET"),
            ("//healthz", "GET"),
        ]:
            body = b"{}" if method == "POST" else None
            path = path.replace("{name}", "plain")
            is_open = path in ("/healthz", "/readyz") or (path, method) == ("/", "GET")  # the page asks for the key
            for given in wrong:
                headers = {"Authorization": given}
                assert (server.ask(path, body, method=method, headers=headers)[0] == 401) != is_open, (path, given)
            assert (server.ask(path, body, method=method)[0] == 401) != is_open
            for given in (*KEYS, *(f"Bearer {key}" for key in KEYS), f"bearer {KEYS[0]}"):
                assert server.ask(path, body, method=method, headers={"Authorization": given})[0] != 401
        twice = (
            b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: %s\r\n\r\n" % KEYS[0].encode()
        )
        refused(server.send(twice), 401)
        long = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n\r\n" % (b"x" * (1 << 20))
        refused(server.send(long), 431)
        record_property("trials", (len(routes) + 4) * (len(wrong) + 6))


def test_h17_errors_say_nothing_of_the_server(server, caplog):
    """H17: neither bodies nor headers have paths, files or stacks."""
    for path, body in [("/v1/fill", {"input": 1}), ("/../../etc/passwd", None), ("/v1/fill", {"input": "[MASK]" * 50}),
                       ("/v1/models/%2e%2e%2fetc", None), ("/v1/tag", {"model": "plain", "input": "a"}),
                       ("/v1/fill?x=%0d%0aX: y", {"input": "a"})]:  # fmt: skip
        status, answer, headers = server.ask(path.replace(" ", "%20"), body)
        assert 400 <= status < 500
        assert not any(secret in str(answer) + str(headers) for secret in SECRETS)
        assert "server" not in headers
        assert "x" not in headers
    assert caplog.text == ""


CRUMBS = (b"\r\n", b"\0", b"[" * 50, b'"', b"9" * 30, b"\xed\xa0\x80", b"{}", b"null", b"%00")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def mutated(rng):
    """A request to any route, with some of its bytes changed, left out, doubled or from elsewhere."""
    path = rng.choice([*PATHS, "/", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/plain"])
    body = json.dumps(BODIES.get(path, {})).encode()
    if rng.random() < 0.5:
        body = changed(rng, body)
    method = rng.choice(METHODS) if rng.random() < 0.4 else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    whole = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    return changed(rng, whole) if rng.random() < 0.5 else whole


def changed(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del data[at : at + rng.randint(1, 20)]
        elif kind == 2:
            data[at:at] = data[at : at + rng.randint(1, 40)]
        elif kind == 3:
            data[at:at] = rng.choice(
                [b"\r\n", b"\0", b"[" * 50, b'"', b"9" * 30, b"\xed\xa0\x80", b"{}", b"null", b"%00"]
            )
        else:
            data = data[:at]
    return bytes(data)


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.abuses)])
def test_h19_mutated_requests(folders, count, record_property):
    """H19: every answer is well formed, none says that the server has failed."""
    rng, statuses = random.Random(count), Counter()

    def send(port, data):
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            return data, received(connection)

    limits = [f"body={LIMIT}", "slow_seconds=1"]
    with running(*folders, limits=limits) as server, ThreadPoolExecutor(16) as callers:
        for data, answer in callers.map(partial(send, server.port), (mutated(rng) for _ in range(count))):
            if not answer:  # the rest of it never came
                continue
            match = re.match(rb"HTTP/1\.1 (\d\d\d) [^\r\n]*\r\n(?:[!-9;-~]+: [^\r\n]*\r\n)+\r\n", answer)
            assert match, (data, answer)
            status = int(match[1])
            assert status < 500 or status in (501, 505), (data, answer)
            statuses[status] += 1
        assert statuses[200] > count / 20
        assert server.ask("/v1/fill", FILL)[0] == 200
    record_property("trials", count)
    found = ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
    record_property("fault_note", f"H19: of {count:,} requests {found}; the others waited for more")
