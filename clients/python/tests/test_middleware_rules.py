"""The rules of the middleware that need no server: keys, fingerprints, stored responses, options."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scripted import VECTORS

from oncegate import AsyncClient, Client
from oncegate.contents import canonical_fingerprint
from oncegate.contrib.asgi import OnceMiddleware
from oncegate.middleware import Rules, shared_keys
from oncegate.middleware.incoming import Incoming, fingerprint, wait_preferred
from oncegate.middleware.key import InvalidKey, parse
from oncegate.middleware.recorder import Recorder, replay


@pytest.mark.parametrize(
    ("lines", "joined", "key"),
    [
        (["abc"], False, "abc"),
        (['"abc"'], False, "abc"),
        (['"a\\"b\\\\c"'], False, 'a"b\\c'),
        ([" a\t"], False, "a"),
        (['a"b'], False, 'a"b'),
        (["a" * 255], False, "a" * 255),
        (["a,b"], False, "a,b"),
        (['"a,b"'], True, "a,b"),
    ],
)
def test_a_key_is_read_as_its_caller_means_it(lines: list[str], joined: bool, key: str) -> None:
    assert parse(lines, joined=joined) == key


@pytest.mark.parametrize(
    ("lines", "joined", "says"),
    [
        (["a", "a"], False, "came twice"),
        (["a", "b"], False, "came twice"),
        (["a,a"], True, "came twice"),
        (["a, b"], True, "came twice"),
        (['"a","a"'], True, "came twice"),
        ([""], False, "empty"),
        (['""'], False, "empty"),
        (["a" * 256], False, "longer than 255"),
        (["a b"], False, "visible ASCII"),
        (["\xe4"], False, "visible ASCII"),
        (["a\tb"], False, "visible ASCII"),
        (['"'], False, "close it"),
        (['"a'], False, "close it"),
        (['"a"b'], False, "close it"),
        (['"a\\b"'], False, "close it"),
        (['"a\\'], False, "close it"),
        (['"a";x=1'], False, "parameters"),
    ],
)
def test_a_wrong_key_is_refused_with_what_to_send(lines: list[str], joined: bool, says: str) -> None:
    with pytest.raises(InvalidKey, match=says):
        parse(lines, joined=joined)


def request(method: str = "POST", path: str = "/a", query: str | None = "x=1", **fields: str) -> Incoming:
    return Incoming(method, path, query, [(name.replace("_", "-"), value) for name, value in fields.items()], False)


ALL = ("method", "path", "query", "content-type", "if-match", "body")


def test_each_part_of_a_request_makes_a_difference() -> None:
    one = fingerprint(request(content_type="a/b"), b"1", ALL)
    others = [
        (request("PUT", content_type="a/b"), b"1"),
        (request(path="/b", content_type="a/b"), b"1"),
        (request(query=None, content_type="a/b"), b"1"),
        (request(content_type="a/c"), b"1"),
        (request(), b"1"),
        (request(content_type="a/b", if_match='"1"'), b"1"),
        (request(content_type="a/b", x_http_method_override="DELETE"), b"1"),
        (request(content_type="a/b"), b"2"),
    ]
    marks = [one, *(fingerprint(other, body, ALL) for other, body in others)]
    assert len({json.dumps(mark, sort_keys=True) for mark in marks}) == len(marks)
    assert fingerprint(request(), b"1", ["body"]) == fingerprint(request("PUT", "/z"), b"1", ["body"])


FINGERPRINTS = json.loads((VECTORS.parents[1] / "tests" / "vectors" / "fingerprint.json").read_text())


@pytest.mark.parametrize("vector", FINGERPRINTS, ids=lambda vector: vector["name"])
def test_fingerprints_are_those_of_all_languages(vector: dict[str, Any]) -> None:
    path, found, query = vector["url"].partition("?")
    fields = [(name.lower(), value.encode().decode("latin-1")) for name, value in vector["headers"]]
    incoming = Incoming(vector["method"], path, query if found else None, fields, joined=False)
    mark = fingerprint(incoming, vector["body"].encode(), vector["parts"])
    assert canonical_fingerprint(mark) == vector["fingerprint"]


def form(boundary: str, *parts: str, end: str = "--\r\n") -> bytes:
    return (f"--{boundary}\r\n" + f"\r\n--{boundary}\r\n".join(parts) + f"\r\n--{boundary}{end}").encode()


def form_mark(boundary: str, body: bytes) -> dict[str, str | None]:
    return fingerprint(request(content_type=f"multipart/form-data; boundary={boundary}"), body, ALL)


def test_a_form_is_the_same_with_another_boundary() -> None:
    one = form_mark("a", form("a", "x\r\n\r\n1", "y\r\n\r\n2"))
    assert form_mark('"b"', form("b", "x\r\n\r\n1", "y\r\n\r\n2")) == one
    assert form_mark("b", form("b", "x\r\n\r\n1", "y\r\n\r\n2", end="--")) == one
    assert form_mark("a", form("a", "x\r\n\r\n1", "y\r\n\r\n3")) != one
    assert form_mark("a", form("a", "x\r\n\r\n1y\r\n\r\n2")) != one
    assert one["content-type"] == "multipart/form-data"


@pytest.mark.parametrize(
    "body", [b"", b"--a", b"--a\r\nx", b"pre\r\n--a\r\nx\r\n--a--", b"--a\r\nx\r\n--a--more", b"--a\r\nx\r\n--ab\r\n--a--"]
)
def test_what_readers_could_understand_differently_is_no_form(body: bytes) -> None:
    assert form_mark("a", body)["content-type"] != "multipart/form-data"


def test_json_is_compared_by_value_where_that_is_safe() -> None:
    def mark(body: bytes) -> str | None:
        return fingerprint(request(), body, ["body:json"])["body"]

    assert mark(b'{"a": 1, "b": 2}') == mark(b'{"b":2.0,"a":1}')
    for one, other in [
        (b"not json", b"not  json"),
        (b'{"a":1,"a":1}', b'{"a":1}'),
        (b"\xff", b"\xfe"),
        (b"9007199254740993", b"9007199254740992"),
    ]:
        assert mark(one) != mark(other)


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=10", 10),
        ('respond-async, Wait = "10"; x=1', 10),
        ("wait=10, wait=5", 10),
        ("wait", None),
        ("wait=-1", None),
        ("waits=10", None),
    ],
)
def test_the_preference_to_wait(prefer: str, seconds: int | None) -> None:
    assert wait_preferred(request(prefer=prefer)) == seconds


def stored(fields: list[tuple[str, str]], body: bytes = b"b", status: int = 201, **options: Any) -> dict[str, Any]:
    recorder = Recorder(Rules(operation="o", principal=shared_keys, **options), None)
    recorder.begin(status, fields)
    recorder.add(body)
    return recorder.results()[0]


@pytest.mark.parametrize(
    ("options", "field", "is_stored"),
    [
        ({}, "X-More", True),
        ({}, "Set-Cookie", False),
        ({}, "WWW-Authenticate", False),
        ({}, "Proxy-Authenticate", False),
        ({}, "Connection", False),
        ({}, "Date", False),
        ({}, "Content-Length", False),
        ({}, "Oncegate-Degraded", False),
        ({}, "Idempotent-Replayed", False),
        ({"store_with": ["Set-Cookie"]}, "Set-Cookie", True),
        ({"store_without": ["X-More"]}, "X-More", False),
    ],
)
def test_fields_that_are_stored(options: dict[str, Any], field: str, is_stored: bool) -> None:
    value = "1" if field == "Content-Length" else "close, X-Hop" if field == "Connection" else "v"
    names = [name for name, _ in stored([(field, value), ("X-Hop", "1")], **options)["fields"]]
    assert (field.lower() in names) == is_stored
    assert ("x-hop" in names) == (field != "Connection")


def test_what_does_not_fit_or_must_not_be_kept_is_a_tombstone() -> None:
    location = ("Location", "/o/7")
    cases: list[tuple[list[tuple[str, str]], bytes, dict[str, Any]]] = [
        ([], b"x" * 46081, {}),
        ([("X-Long", "x" * 40000)], b"", {}),
        ([("Cache-Control", "private, No-Store")], b"", {}),
        # Within the limit of the body, and too long in stored form.
        ([("X-Long", "x" * 20000)], b"x" * 45000, {}),
    ]
    for fields, body, options in cases:
        tombstone = stored([location, *fields], body, **options)
        assert tombstone["fields"] == [["location", "/o/7"]]
        assert "body" not in tombstone
    assert "body" in stored([("Cache-Control", "no-store")], store_private=True)


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        {"v": 1},
        {"v": 2, "status": 201, "at": 1, "fields": [], "body": ""},
        {"v": 1, "status": 99, "at": 1, "fields": [], "body": ""},
        {"v": 1, "status": 201, "at": 1, "fields": [], "body": "?"},
        {"$oncegate": {"omitted": "refused"}},
    ],
)
def test_what_is_no_stored_response_is_never_sent_as_one(result: Any) -> None:
    reply = replay(result, Rules(operation="o", principal=shared_keys))
    assert reply.problem is not None
    assert reply.problem.code == "response_not_stored"


def test_a_replay_is_filtered_as_if_it_came_now() -> None:
    fields = [["x-a", "1"], ["x-a", "2"], ["set-cookie", "s"], ["x-split", "a\r\nb"], ["age", "5"], [":x-sum", "9"], "wrong"]
    body = base64.b64encode(b"b").decode()
    reply = replay({"v": 1, "status": 201, "at": 0, "fields": fields, "body": body}, Rules(operation="o", principal=shared_keys))
    names = [name for name, _ in reply.fields]
    assert names == ["X-A", "X-A", "Content-Length", "Idempotent-Replayed", "Age"]
    assert int(dict(reply.fields)["Age"]) > 5
    assert reply.body == b"b"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"operation": "no spaces"}, "order.submit"),
        ({"principal": "user"}, "function of the request"),
        ({"methods": ["GET", "POST"]}, "GET, which changes nothing"),
        ({"methods": "POST"}, "list of unsafe methods"),
        ({"methods": ["post"]}, "list of unsafe methods"),
        ({"when": True}, "when is a function"),
        ({"required": 1}, "required is True or False"),
        ({"fingerprint": ["host"]}, "fingerprint is a list"),
        ({"fingerprint": ["body", "body:json"]}, "leave one out"),
        ({"store": ["2xx", "429"], "release": ["429"]}, "in store and in release"),
        ({"release": ["1xx"]}, "release is a list"),
        ({"on_5xx": "retry"}, "on_5xx is one of"),
        ({"nothing_happened": "StockError"}, "tuple of exception classes"),
        ({"lease": "soon"}, "lease is a duration"),
        ({"wait": "2h"}, "wait is at most an hour"),
        ({"wait": 3600.5}, "wait is at most an hour"),
        ({"wait": timedelta(days=1)}, "wait is at most an hour"),
        ({"exchange_max": -1}, "exchange_max is a duration"),
        ({"claim_within": True}, "claim_within is a duration"),
        ({"body_bytes": 0}, "body_bytes is a number"),
        ({"store_with": ["Connection"]}, "leave it out"),
        ({"store_without": "Set-Cookie"}, "list of field names"),
        ({"on_unavailable": "open"}, "on_unavailable is one of"),
        ({"metods": ["POST"]}, "metods"),
    ],
)
def test_a_wrong_option_fails_when_the_rules_are_made(options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        Rules(**{"operation": "o", "principal": shared_keys, **options})


def test_a_wait_of_an_hour_is_not_too_long() -> None:
    for wait in ("1h", "3600s", 3600, timedelta(hours=1)):
        Rules(operation="o", principal=shared_keys, wait=wait)


def test_durations_are_numbers_texts_or_timedeltas() -> None:
    for lease in (30, 30.5, "30s"):
        Rules(operation="o", principal=shared_keys, lease=lease)


def test_an_outcome_that_is_said_twice_is_no_outcome() -> None:
    recorder = Recorder(Rules(operation="o", principal=shared_keys), None)
    left = recorder.begin(200, [("Oncegate-Outcome", "success"), ("X-A", "1"), ("oncegate-outcome", "failure")])
    assert (recorder.outcome, left) == ("success, failure", [("X-A", "1")])


def test_an_exact_status_beats_a_class() -> None:
    rules = Rules(operation="o", principal=shared_keys, store=["2xx", "4xx", "503"], release=["404"], on_5xx="release")
    meanings = {status: rules.meaning(status) for status in (200, 404, 409, 503, 502, 304)}
    assert meanings == {200: "store", 404: "release", 409: "store", 503: "store", 502: "release", 304: "unknown"}


@pytest.mark.parametrize(
    ("options", "meanings"),
    [
        ({"store": ["2xx", "403"]}, {403: "store", 401: "release", 404: "unknown"}),
        ({"release": ["204", "302", "4xx"]}, {204: "release", 201: "store", 302: "release", 303: "store", 404: "release"}),
    ],
)
def test_an_exact_status_leaves_the_default_of_the_other_list(options: dict[str, Any], meanings: dict[int, str]) -> None:
    rules = Rules(operation="o", principal=shared_keys, **options)
    assert {status: rules.meaning(status) for status in meanings} == meanings
    copy = replace(rules, on_5xx="release")
    assert {status: copy.meaning(status) for status in meanings} == meanings


def test_the_client_is_checked() -> None:
    with pytest.raises(TypeError, match="AsyncClient, got str"):
        OnceMiddleware(None, "client", Rules(operation="o", principal=shared_keys))  # type: ignore[arg-type]
    for client in (Client(["http://a:1"]), AsyncClient(["http://a:1"])):
        OnceMiddleware(None, client, Rules(operation="o", principal=shared_keys))
