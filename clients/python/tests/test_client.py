"""Rules outside of the vectors: arguments, interruption, forks, hooks, the decorator; and a real gateway where there is one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from scripted import Script

from oncegate import AsyncClient, Client, Done, Duplicate, Event, NothingHappened, Unavailable, current, once
from oncegate.middleware.problems import problem_of

SECRET = "shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"urls": []}, "one or more"),
        ({"urls": "http://a:1"}, "a list"),
        ({"urls": ["a:8080"]}, "http://HOST:PORT"),
        ({"urls": ["ftp://a"]}, "http://HOST:PORT"),
        ({"urls": ["http://a:99999"]}, "http://HOST:PORT"),
        ({"urls": ["http://u:p@a:1"]}, "credential="),
        ({"urls": ["http://a:1/?x=1"]}, "query"),
        ({"urls": ["http://a:1"], "credential": "no_dot"}, "<app_key>.<secret>"),
        ({"urls": ["http://a:1"], "credential": "shop.a\r\nb"}, "<app_key>.<secret>"),
        ({"urls": ["http://a:1"], "timeout": 0}, "seconds above 0"),
        ({"urls": ["http://a:1"], "claim_within": None}, "seconds above 0"),
        ({"urls": ["http://a:1"], "settle_within": "soon"}, "None for no limit"),
        ({"urls": ["http://a:1"], "on_unavailable": "open"}, "'fail_closed', 'proceed'"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_wrong_option_fails_when_the_client_is_made(kind: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        kind(**arguments)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: client.claim("no spaces", "a"), "order.submit"),
        (lambda client: client.claim("a", "a", lease=True), "'30s'"),
        (lambda client: client.claim("a", "a", lease="0s"), "'30s'"),
        (lambda client: client.claim("a", "a", retention="eternal"), "'forever'"),
        (lambda client: client.claim("a", "a", take_over=1), "True or False"),
        (lambda client: client.lookup("abc"), "32 hex digits"),
        (lambda client: client.settle("{}"), "NotSettled"),
        (lambda client: client.lock("a b"), "stock:42"),
        (lambda client: client.lock("a", owner="short"), "16 to 64"),
        (lambda client: client.lock("a", mode="write"), "'exclusive', 'shared'"),
        (lambda client: client.claim_batch([]), "1 to 1000"),
        (lambda client: client.once("a", "a", "work"), "lambda grant"),
        (lambda client: client.once("a", "a", generator), "generator"),
        (lambda client: client.once("a", "a", lambda: 1), "lambda grant"),
        (lambda client: client.once("a", "a", coroutine), "AsyncClient"),
    ],
)
def test_a_wrong_argument_fails_before_anything_is_sent(call: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        call(Client(["http://127.0.0.1:1"], claim_within=0.1))


def generator(_: Any) -> Any:
    yield 1


async def coroutine(_: Any) -> None:
    pass


def test_a_timedelta_is_a_duration() -> None:
    with scripted([{"expect": {"use": "claim", "body": {"lease": "90000ms"}}, "answer": "duplicate_unknown"}]) as script:
        client = Client(script.urls, SECRET)
        answer = client.claim("order.submit", {"order_id": "A-1001"}, lease=timedelta(minutes=1.5))
        assert isinstance(answer, Duplicate)
        assert not script.faults


class scripted:
    """A script of these exchanges on one server."""

    def __init__(self, exchanges: list[dict[str, Any]]):
        self.script = Script({"exchanges": exchanges}, ["script"])

    def __enter__(self) -> Script:
        return self.script

    def __exit__(self, *_: object) -> None:
        self.script.close()


class Interrupted(BaseException):
    pass


def test_an_interrupted_claim_is_given_back() -> None:
    granted: dict[str, Any] = {"use": "granted", "delay_ms": 300}
    exchanges: list[dict[str, Any]] = [
        {"expect": "claim", "answer": granted},
        {"expect": "lookup", "answer": "no_record"},
        {"expect": "lookup", "answer": "record"},
        {"expect": "failure", "answer": "released"},
    ]
    with scripted(exchanges) as script:
        client = Client(script.urls, SECRET, timeout=0.5)

        def interrupt(*_: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(Interrupted):
                client.once("order.submit", {"order_id": "A-1001"}, lambda _: None)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert script.wait_answered(4)
        assert not script.faults


def test_a_child_process_uses_connections_of_its_own() -> None:
    exchanges = [{"expect": {"use": "claim", "body": {"attempt_nonce": f"${name}"}}, "answer": "duplicate_unknown"} for name in "ab"]
    with scripted(exchanges) as script:
        client = Client(script.urls, SECRET)
        client.claim("order.submit", {"order_id": "A-1001"})
        child = os.fork()
        if child == 0:
            # The connection that the parent keeps is not used here.
            os._exit(0 if not any(client._transport._idle) else 1)
        assert os.waitpid(child, 0)[1] == 0
        client.claim("order.submit", {"order_id": "A-1001"})
        assert not script.faults


def test_a_hook_that_fails_does_not_disturb_the_work(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_: Event) -> None:
        raise RuntimeError("no metrics today")

    with scripted([{"expect": "claim", "answer": "granted"}, {"expect": "success", "answer": "succeeded"}]) as script:
        client = Client(script.urls, SECRET, on_event=hook)
        answer = client.once("order.submit", {"order_id": "A-1001"}, lambda _: {"order_number": 7})
    assert isinstance(answer, Done)
    assert "no metrics today" in caplog.text


def test_the_trace_context_is_passed_on() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    expect = {"use": "claim", "headers": {"traceparent": parent}}
    with scripted([{"expect": expect, "answer": "duplicate_unknown"}]) as script:
        Client(script.urls, SECRET, traceparent=lambda: parent).claim("order.submit", {"order_id": "A-1001"})
        assert not script.faults


def test_events_go_to_the_log_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "oncegate")
    with scripted([{"expect": "claim", "answer": "granted"}, {"expect": "success", "answer": "succeeded"}]) as script:
        Client(script.urls, SECRET).once("order.submit", {"order_id": "A-1001"}, lambda _: {"order_number": 7})
    assert "granted order.submit" in caplog.text
    assert "A-1001" not in caplog.text
    assert "1792488615123456" not in caplog.text


def test_a_gateway_that_drips_is_cut_at_the_deadline() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(100):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    client = Client([f"http://127.0.0.1:{listener.getsockname()[1]}"], timeout=0.3, claim_within=0.3)
    began = time.monotonic()
    with pytest.raises(Unavailable) as unavailable:
        client.claim("a", "a")
    assert time.monotonic() - began < 2
    assert [cause.kind for cause in unavailable.value.causes] == ["timeout"]
    # The gateway may go on, and take the key.
    assert unavailable.value.may_have_acted
    problem = problem_of(unavailable.value)
    assert problem is not None
    assert "may have taken its key" in problem.detail
    listener.close()
    with pytest.raises(Unavailable) as unavailable:
        client.claim("a", "a")
    assert not unavailable.value.may_have_acted
    problem = problem_of(unavailable.value)
    assert problem is not None
    assert "may have" not in problem.detail


CLAIM: dict[str, Any] = {"use": "claim", "body": {"operation": "a", "contents": {"order_id": "A-1001"}}}


def test_the_decorator_selects_contents_by_name() -> None:
    client = Client(["http://127.0.0.1:1"])
    with pytest.raises(TypeError, match="names order, which is no parameter of the function; it has order_id"):
        once(client, operation="a", contents=["order"])(lambda order_id: None)
    with pytest.raises(TypeError, match=r"contents=\['order_id'\]"):
        once(client, operation="a", contents="order_id")(lambda order_id: None)
    with pytest.raises(TypeError, match="generator"):
        once(client, operation="a", contents=["_"])(generator)
    with pytest.raises(TypeError, match="AsyncClient"):
        once(client, operation="a", contents=["_"])(coroutine)


def test_a_transaction_of_django_is_refused() -> None:
    django = pytest.importorskip("django")
    from django.conf import settings

    if not settings.configured:
        databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        settings.configure(DATABASES=databases)
        django.setup()
    from django.db import transaction

    client = Client(["http://127.0.0.1:1"], claim_within=0.05)

    @once(client, operation="a", contents=["order_id"])
    def submit(order_id: str) -> None:
        raise AssertionError("it runs only with a claim")

    with transaction.atomic(), pytest.raises(RuntimeError, match=r"outside of transaction\.atomic"):
        submit("A-1001")
    with pytest.raises(Unavailable):
        submit("A-1001")


needs_gateway = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


@pytest.fixture
def client() -> Client:
    return Client([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"])


@needs_gateway
def test_a_decorated_function_runs_once(client: Client) -> None:
    fences: list[int | None] = []

    @once(client, operation="decorated", contents=["order_id"], fingerprint=lambda order_id, **_: order_id, lease="5s")
    def submit(order_id: str, note: str = "") -> dict[str, str]:
        grant = current()
        assert grant is not None
        fences.append(grant.fence)
        return {"order": order_id, "note": note}

    assert submit("D-1", note="first").value() == {"order": "D-1", "note": "first"}
    again = submit("D-1", note="second")
    assert isinstance(again, Duplicate)
    assert again.result == {"order": "D-1", "note": "first"}
    assert len(fences) == 1
    assert current() is None


@needs_gateway
def test_the_same_for_asyncio() -> None:
    async def run() -> None:
        async with AsyncClient([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"]) as client:
            runs = 0

            @once(client, operation="decorated", contents=["order_id"], lease="5s")
            async def submit(order_id: str) -> str:
                nonlocal runs
                runs += 1
                await asyncio.sleep(0.1)
                return order_id

            answers = await asyncio.gather(*(submit("D-2") for _ in range(20)))
            assert runs == 1
            assert sum(isinstance(answer, Done) for answer in answers) == 1
            assert (await submit("D-2")).value() == "D-2"

    asyncio.run(run())


@needs_gateway
def test_work_longer_than_its_lease_is_renewed_and_nothing_happened_releases(client: Client) -> None:
    def slow(grant: Any) -> int:
        # Long enough that a busy machine renews it in time.
        time.sleep(4)
        assert grant.is_live
        return 1

    assert isinstance(client.once("renewed", "R-1", slow, lease="1500ms"), Done)

    def fails(_: Any) -> None:
        raise NothingHappened("no")

    with pytest.raises(NothingHappened):
        client.once("released", "R-2", fails)
    assert isinstance(client.once("released", "R-2", lambda _: 2), Done)
    record = client.lookup(client.global_id("released", "R-2"))
    assert record is not None
    assert (record.state, record.result) == ("succeeded", 2)


FORKED = """
import ctypes, os, sys, time
from oncegate import Client, Done
client = Client([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"])
# It starts the thread that renews.
client.once("fork.parent", {"at": sys.argv[1]}, lambda grant: time.sleep(0.6), lease="1s")
# As a program in C forks: no hook of Python runs.
child = ctypes.PyDLL(None).fork()
if child == 0:
    answer = client.once("fork.child", {"at": sys.argv[1]}, lambda grant: time.sleep(2) or grant.is_live, lease="1s")
    os._exit(0 if isinstance(answer, Done) and answer.result else 1)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


@needs_gateway
def test_a_child_that_python_did_not_fork_renews_and_connects_itself() -> None:
    source = Path(__file__).resolve().parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, uuid4().hex], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
