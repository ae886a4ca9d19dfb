"""The middleware in a Django project: blocking views under ASGI, transactions, errors of `once`, and tests of users."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")

PROJECT = """
import asyncio, json, sys, time, uuid
import django
from django.conf import settings
from django.db import connection, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient as AsyncBrowser, Client as Browser, AsyncRequestFactory, TestCase
from django.urls import path
from django.utils.decorators import sync_and_async_middleware
from oncegate import Client, current
from oncegate.contrib.django import Rules, drain, install_errors, once_middleware

runs, events, OPERATION = [], [], "django." + uuid.uuid4().hex
client = Client(on_event=lambda event: events.append(event.name))


def from_database(text):
    # As `request.user` is read: Django refuses it on the event loop.
    with connection.cursor() as cursor:
        return cursor.execute("SELECT %s", [text]).fetchone()[0]


@sync_and_async_middleware
def once(get_response):
    ann, always = lambda request: from_database("ann"), lambda request: from_database(1) == 1
    return once_middleware(get_response, client, Rules(operation=OPERATION, principal=ann, when=always, lease="5s"))


@sync_and_async_middleware
def errors(get_response):
    return install_errors(get_response)


def view(request):
    runs.append(request.body)
    assert current() is request.oncegate
    return HttpResponse(f"run {len(runs)}: {request.POST.get('note')}", status=201)


def atomic(request):
    # With ATOMIC_REQUESTS the view is inside of a transaction, and the middleware is not.
    assert connection.in_atomic_block
    runs.append(1)
    return HttpResponse("done")


def with_body(request):
    return HttpResponse("a body that no 204 has", status=204)


@transaction.non_atomic_requests
def refused(request):
    client.once("order.submit", {"price": 1.5}, lambda grant: None)


@transaction.non_atomic_requests
async def stream(request):
    async def rows():
        for number in range(3):
            yield f"row {number} "
    return StreamingHttpResponse(rows())


def sync_stream(request):
    return StreamingHttpResponse(f"row {number} " for number in range(3))


views = {"view": view, "atomic": atomic, "204": with_body, "refused": refused, "stream": stream, "sync": sync_stream}
urlpatterns = [path(name, each) for name, each in views.items()]
settings.configure(
    ALLOWED_HOSTS=["*"], SECRET_KEY="x", ROOT_URLCONF=__name__, MIDDLEWARE=[__name__ + ".errors", __name__ + ".once"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "ATOMIC_REQUESTS": True}},
)
django.setup()


def sent(browser, path, key):
    response = browser.post(path, {"note": "hi"}, headers={"Idempotency-Key": key})
    content = b"".join(response.streaming_content) if response.streaming else response.content
    return response.status_code, content.decode(), response.headers.get("Idempotent-Replayed")


async def sent_async(path, key):
    response = await AsyncBrowser().post(path, {"note": "hi"}, headers={"Idempotency-Key": key})
    content = b"".join([each async for each in response.streaming_content]) if response.streaming else response.content
    return response.status_code, content.decode(), response.headers.get("Idempotent-Replayed")


def both(path):
    return [sent(Browser(), path, "k-" + path) for _ in range(2)]


async def both_async(path):
    return [await sent_async(path, "a-" + path) for _ in range(2)]


async def awaited():
    async def ann(request):
        await asyncio.sleep(0)
        return "ann"

    async def answer(request):
        return HttpResponse("done")

    once = once_middleware(answer, client, Rules(operation=OPERATION, principal=ann))
    requests = [AsyncRequestFactory().post("/", headers={"Idempotency-Key": "awaited"}) for _ in range(2)]
    return [(await once(request)).headers.get("Idempotent-Replayed") for request in requests]


def of_a_test():
    class Shop(TestCase):
        def test_it(self):
            self.done = [client.once("coupon.redeem", {"coupon": uuid.uuid4().hex}, lambda grant: 5).value(), both("/view")[1][2]]

    Shop.setUpClass()
    try:
        case = Shop("test_it")
        result = case.run()
        return [len(result.errors), len(result.failures), getattr(case, "done", None), [text for _, text in result.errors]]
    finally:
        Shop.tearDownClass()


out = {"blocking": {path: both("/" + path) for path in ("view", "atomic", "204", "sync", "stream")}}
out["async"] = {path: asyncio.run(both_async("/" + path)) for path in ("view", "stream", "sync")}
out["awaited"] = asyncio.run(awaited())
refusal = Browser().post("/refused")
out["refused"] = [refusal.status_code, json.loads(refusal.content)["code"]]
out["case"] = of_a_test()
print(json.dumps(out))
"""


def test_a_django_project(tmp_path: Path) -> None:
    module = tmp_path / "project.py"
    module.write_text(textwrap.dedent(PROJECT))
    source = Path(__file__).resolve().parents[1] / "src"
    environment = {**os.environ, "PYTHONPATH": f"{source}:{tmp_path}"}
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import project"], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
    )
    assert made.returncode == 0, made.stderr[-4000:]
    out = json.loads(made.stdout)
    rows = "row 0 row 1 row 2 "
    assert out["blocking"]["view"] == [[201, "run 1: hi", None], [201, "run 1: hi", "true"]]
    assert out["blocking"]["atomic"] == [[200, "done", None], [200, "done", "true"]]
    assert out["blocking"]["204"] == [[204, "", None], [204, "", "true"]]
    assert out["blocking"]["sync"] == out["blocking"]["stream"] == [[200, rows, None], [200, rows, "true"]]
    # A blocking view under ASGI, and both kinds of streams.
    assert out["async"]["view"][1] == [201, out["async"]["view"][0][1], "true"]
    assert out["async"]["stream"] == out["async"]["sync"] == [[200, rows, None], [200, rows, "true"]]
    # A principal that is asynchronous.
    assert out["awaited"] == [None, "true"]
    assert out["refused"] == [422, "contents_not_canonical"]
    assert out["case"] == [0, 0, [5, "true"], []]
