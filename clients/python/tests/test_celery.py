"""Celery tasks against a real gateway."""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

import pytest

from oncegate import Client, Grant, NothingHappened, ResultNotStored

pytestmark = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


def test_celery() -> None:
    from celery import Celery

    from oncegate.contrib.celery import OnceTask, ParkedTask

    app = Celery("shop", broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = False
    client = Client([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"])
    runs: list[str] = []
    operation = f"celery.{uuid4().hex}"
    tries: list[str] = []

    def contents(order: str) -> dict[str, str]:
        tries.append(order)
        if tries.count("A-2") == 6 and isinstance(grant, Grant):
            grant.succeed("placed elsewhere")
        return {"order": order}

    grant: Any = None
    base: dict[str, Any] = {"base": OnceTask, "client": client, "operation": operation, "contents": contents}

    @app.task(name="submit", redeliver_after=0.01, lease="5s", **base)  # type: ignore[untyped-decorator]
    def submit(order: str) -> str:
        runs.append(order)
        if order == "fails":
            raise NothingHappened("not now")
        if order == "crashes":
            raise RuntimeError("who knows")
        return f"placed {order}"

    assert submit.delay("A-1").get() == "placed A-1"
    assert submit.delay("A-1").get() == "placed A-1"
    assert runs == ["A-1"]
    failed = submit.delay("fails")
    assert isinstance(failed.result, ParkedTask)
    assert failed.result.why == "poison"
    assert runs.count("fails") == 3
    crashed = submit.delay("crashes").result
    assert isinstance(crashed, ParkedTask)
    assert repr(crashed.__cause__) == "RuntimeError('who knows')"
    assert submit.delay("crashes").result.__cause__ is None
    assert runs.count("crashes") == 1
    # In progress elsewhere: retried until it has ended, however often.
    grant = client.claim(operation, {"order": "A-2"}, lease="2s")
    assert submit("direct") == "placed direct"
    assert submit.delay("A-2").get() == "placed elsewhere"
    assert "A-2" not in runs
    assert tries.count("A-2") == 6

    # A result that was not stored is an error, and never None.
    client.once(operation, {"order": "A-3"}, lambda _: "x" * 70_000)
    assert isinstance(submit.delay("A-3").result, ResultNotStored)

    @app.task(name="harmless", nothing_happened=(KeyError,), redeliver_after=0.01, **base)  # type: ignore[untyped-decorator]
    def harmless(order: str) -> str:
        runs.append(order)
        raise KeyError(order)

    assert harmless.delay("A-4").result.why == "poison"
    assert runs.count("A-4") == 3

    @app.task(name="incomplete", base=OnceTask)  # type: ignore[untyped-decorator]
    def incomplete() -> None: ...

    assert isinstance(incomplete.delay().result, TypeError)


def test_a_task_that_celery_would_retry_by_itself_is_refused() -> None:
    from celery import Celery

    from oncegate.contrib.celery import OnceTask

    app = Celery("shop", broker="memory://")
    base: dict[str, Any] = {"base": OnceTask, "client": Client(), "operation": "order.submit", "contents": lambda: {"order": 1}}

    @app.task(name="retried", autoretry_for=(ConnectionError,), **base)  # type: ignore[untyped-decorator]
    def submit() -> None: ...

    with pytest.raises(TypeError, match="nothing_happened"):
        app.finalize()
