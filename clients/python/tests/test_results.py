"""Results by their type, work that ends later, errors that are declared harmless, transactions, and the switch."""

from __future__ import annotations

import asyncio
import enum
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID, uuid4

import attrs
import pydantic
import pytest

from oncegate import (
    AsyncClient,
    Cause,
    Client,
    Done,
    Duplicate,
    Event,
    LockNotAcquired,
    Mismatch,
    NotCanonical,
    NothingHappened,
    NotRun,
    NotSettled,
    OutcomeRefused,
    Rejected,
    ResultNotStored,
    SettleItem,
    Unavailable,
    once,
)

needs_gateway = pytest.mark.skipif("ONCEGATE_URL" not in os.environ, reason="no gateway: run it by scripts/with-gateway")


def client(**options: Any) -> Client:
    return Client([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"], **options)


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal
    at: datetime


@dataclass(frozen=True)
class Receipt:
    number: int
    total: Decimal
    lines: list[Line]
    colour: Colour
    parent: Receipt | None = None
    tags: tuple[str, ...] = ()


@attrs.frozen
class Seat:
    row: int
    id: UUID


NOW = datetime(2026, 11, 25, 9, 30, tzinfo=timezone.utc)
RECEIPT = Receipt(7, Decimal("11.10"), [Line(sku="a", price=Decimal("1.1"), at=NOW)], Colour.RED, None, ("x", "y"))
TYPED: list[tuple[Any, Any]] = [
    (RECEIPT, Receipt),
    (Line(sku="a", price=Decimal("1.1"), at=NOW), Line),
    (Seat(3, UUID(int=7)), Seat),
    (Decimal("1.10"), Decimal),
    (NOW, datetime),
    (date(2026, 11, 25), date),
    (timedelta(minutes=2), timedelta),
    (UUID(int=9), UUID),
    (Colour.RED, Colour),
    (Size.BIG, Size),
    ([RECEIPT], list[Receipt]),
    ({1: Decimal("2")}, dict[int, Decimal]),
    ((1, "a"), tuple[int, str]),
    (None, Receipt | None),
    (RECEIPT, Optional[Receipt]),  # noqa: UP045
    ({"a": 1}, dict[str, int]),
    ("text", str),
    ("half a pair: \ud83d", str),
]


@needs_gateway
@pytest.mark.parametrize(("result", "kind"), TYPED, ids=lambda each: str(each)[:40])
def test_a_duplicate_gets_the_result_as_its_type(result: Any, kind: Any) -> None:
    def work(order: str) -> Any:
        return result

    work.__annotations__["return"] = kind
    decorated = once(client(), operation=f"results.{uuid4().hex}", contents=["order"], lease="5s")(work)
    first, second = decorated("A-1"), decorated("A-1")
    assert isinstance(first, Done)
    assert isinstance(second, Duplicate)
    assert (second.value(), type(second.value())) == (result, type(result))


@needs_gateway
def test_the_type_of_a_result_can_be_given_or_replaced() -> None:
    operation = f"results.{uuid4().hex}"
    for _ in range(2):
        assert client().once(operation, "A-1", lambda _: RECEIPT, result=Receipt).value() == RECEIPT
    hooks: dict[str, Any] = {"serialize": lambda value: {"n": str(value)}, "deserialize": lambda stored: complex(stored["n"])}
    for _ in range(2):
        assert client().once(operation, "A-2", lambda _: 3j, **hooks).value() == 3j


@needs_gateway
def test_a_result_that_is_not_stored_is_never_none() -> None:
    events: list[Event] = []
    one = client(on_event=events.append)
    for result, why in [("x" * 70_000, "too_large"), (object(), "not_serialisable")]:
        operation = f"results.{uuid4().hex}"
        done = one.once(operation, "A-1", lambda _, result=result: result)  # type: ignore[misc]
        assert isinstance(done, Done)
        assert done.result_omitted == why
        duplicate = one.once(operation, "A-1", lambda _: None)
        assert isinstance(duplicate, Duplicate)
        assert (duplicate.result, duplicate.result_omitted) == (None, why)
        with pytest.raises(ResultNotStored, match=why):
            duplicate.value()
        decorated = once(one, operation=operation, contents=lambda: "A-1")(lambda: None)
        with pytest.raises(ResultNotStored, match=why):
            decorated()
    assert [event.name for event in events].count("result_omitted") == 2
    # None is None.
    operation = f"results.{uuid4().hex}"
    assert [one.once(operation, "A-1", lambda _: None).value() for _ in range(2)] == [None, None]
    # Stored by an earlier version of the service.
    one.once(operation, "A-2", lambda _: {"old": 1})
    with pytest.raises(ResultNotStored, match="unreadable"):
        one.once(operation, "A-2", lambda _: RECEIPT, result=Receipt)


def test_errors_travel_between_processes() -> None:
    errors = [
        Unavailable([Cause("http://a:1", "refused", "no")]),
        Rejected(400, {"code": "invalid_request"}),
        OutcomeRefused("superseded", 7),
        NotSettled("{}", 7, ValueError("no")),
        NotCanonical("float", "$", "a float"),
        LockNotAcquired("stock:42", "lock_held", 1.0),
        ResultNotStored("too_large", "id"),
        NothingHappened("sold out"),
        NotRun(Mismatch("fingerprint_mismatch", "id")),
    ]
    for error in errors:
        same = pickle.loads(pickle.dumps(error))
        assert (type(same), str(same), vars(same)) == (type(error), str(error), vars(error))


def test_an_answer_without_a_result_raises_where_a_value_is_wanted() -> None:
    answers: list[Any] = [Duplicate("unknown", None, 1.0, None, None, True, None, "id"), Mismatch("fingerprint_mismatch", "id")]
    for answer in answers:
        with pytest.raises(NotRun) as refused:
            answer.value()
        assert refused.value.answer is answer


def pending(_: Any) -> Future[int]:
    raise NotImplementedError


def rows(_: Any) -> Iterator[int]:
    return iter([1])


class Opaque:
    pass


def unreadable(_: Any) -> Opaque:
    return Opaque()


@pytest.mark.parametrize("work", [pending, rows, unreadable])
@pytest.mark.parametrize("way", ["once", "decorator"])
def test_a_result_that_cannot_be_stored_is_refused_before_the_work(work: Callable[[Any], Any], way: str) -> None:
    away = Client(["http://127.0.0.1:9"], claim_within=0.2)
    decorate = once(away, operation="order.submit", contents=["_"])
    with pytest.raises(TypeError, match="the function returns"):
        decorate(work) if way == "decorator" else away.once("order.submit", "A-1", work)


@needs_gateway
@pytest.mark.parametrize("result", [iter([1]), (each for each in [1]), Future[int]()], ids=["iterator", "generator", "future"])
def test_work_that_goes_on_after_its_return_is_unknown(result: Any) -> None:
    operation = f"results.{uuid4().hex}"
    with pytest.raises(TypeError, match="outcome is unknown"):
        client().once(operation, "A-1", lambda _: result)
    answer = client().once(operation, "A-1", lambda _: 1)
    assert isinstance(answer, Duplicate)
    assert answer.state == "unknown"


class OutOfStock(Exception):
    pass


class SoldOut(OutOfStock):
    pass


class Group(Exception):
    def __init__(self) -> None:
        self.__cause__ = OutOfStock()


@needs_gateway
@pytest.mark.parametrize("way", ["client", "once", "decorator", "async"])
def test_declared_errors_release_the_operation(way: str) -> None:
    declared: Any = {"nothing_happened": (OutOfStock,)}

    def run(operation: str, work: Callable[[], Any]) -> Any:
        if way == "client":
            return client(**declared).once(operation, "A-1", lambda _: work())
        if way == "once":
            return client().once(operation, "A-1", lambda _: work(), **declared)
        if way == "decorator":
            return once(client(), operation=operation, contents=lambda: "A-1", **declared)(lambda: work())()

        async def asynchronous() -> Any:
            async def of_the_grant(_: Any) -> Any:
                return work()

            async with AsyncClient([os.environ["ONCEGATE_URL"]], os.environ["ONCEGATE_CREDENTIAL"]) as one:
                return await one.once(operation, "A-1", of_the_grant, **declared)

        return asyncio.run(asynchronous())

    def raising(error: Exception) -> Callable[[], Any]:
        def work() -> Any:
            raise error

        return work

    for error, is_harmless in [(OutOfStock(), True), (SoldOut(), True), (Group(), False), (KeyError(), False)]:
        operation = f"results.{uuid4().hex}"
        with pytest.raises(type(error)):
            run(operation, raising(error))
        assert isinstance(run(operation, lambda: 1), Done) == is_harmless, error


@needs_gateway
def test_a_batch_settles_live_grants_and_kept_reports() -> None:
    one, operation = client(), f"results.{uuid4().hex}"
    grants = [one.claim(operation, {"n": number}, lease="30s") for number in range(3)]
    ends = one.settle_batch([SettleItem(grants[0], result={"a": 1}), SettleItem(grants[1], "failure"), SettleItem(grants[2], "unknown")])
    assert [end.state for end in ends if not isinstance(end, Exception)] == ["succeeded", "released", "unknown"]
    assert one.once(operation, {"n": 0}, lambda _: {"b": 2}).value() == {"a": 1}
    assert isinstance(one.once(operation, {"n": 1}, lambda _: 1), Done)
    with pytest.raises(ValueError, match="was reported"):
        one.settle_batch([SettleItem(grants[0])])


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_client_that_is_switched_off_runs_everything(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"enabled": False} if how == "option" else {}
    if how == "environment":
        monkeypatch.setenv("ONCEGATE_DISABLED", "1")
    off = Client(["http://127.0.0.1:9"], **options)
    for _ in range(2):
        done = off.once("order.submit", "A-1", lambda grant: grant.is_live)
        assert isinstance(done, Done)
        assert (done.result, done.degraded, done.state) == (True, "disabled", None)
    with off.lock("stock:42") as hold:
        assert hold.is_live
    assert off.lookup(done.global_id) is None

    async def asynchronous() -> None:
        async with AsyncClient(["http://127.0.0.1:9"], **options) as one, one.lock("stock:42"):

            async def work(_: Any) -> int:
                return 1

            assert (await one.once("order.submit", "A-1", work)).value() == 1

    asyncio.run(asynchronous())


@needs_gateway
def test_a_transaction_is_refused_unless_it_is_that_of_a_test() -> None:
    from django.conf import settings
    from django.db import connection, transaction

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    one, operation = client(), f"results.{uuid4().hex}"
    decorated = once(one, operation=operation, contents=lambda: "D")(lambda: 1)
    connection.ensure_connection()
    with transaction.atomic():
        for call in (lambda: one.once(operation, "A", lambda _: 1), lambda: one.claim(operation, "B"), decorated):
            with pytest.raises(RuntimeError, match="inside_transaction='allow'"):
                call()
        assert isinstance(one.once(operation, "C", lambda _: 1, inside_transaction="allow"), Done)
    of_a_test = transaction.atomic()
    of_a_test._from_testcase = True
    with of_a_test:
        assert isinstance(decorated(), Done)
        with transaction.atomic(), pytest.raises(RuntimeError, match="outside of"):
            one.once(operation, "E", lambda _: 1)
