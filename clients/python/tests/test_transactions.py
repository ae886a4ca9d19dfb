"""A transaction of a real database inside `@once`: a success is reported after the commit, and never after a rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncegate import Client, once
from oncegate.errors import NotRun
from oncegate.testing import MemoryGateway

# Django warns of a project that has no applications.
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the database during app initialization")


class OutOfStock(Exception):
    pass


class Table(NamedTuple):
    """The orders of a shop: a transaction, an insert into it, and how many there are after a commit."""

    transaction: Callable[[], AbstractContextManager[Any]]
    insert: Callable[[Any, str], object]
    total: Callable[[], int]


@pytest.fixture(params=["sqlalchemy", "django"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    if request.param == "sqlalchemy":
        yield from of_sqlalchemy(tmp_path / "shop.db")
    else:
        yield from of_django()


def of_sqlalchemy(path: Path) -> Iterator[Table]:
    from sqlalchemy import Column, MetaData, String, create_engine, func, select
    from sqlalchemy import Table as SqlTable
    from sqlalchemy.orm import sessionmaker

    orders = SqlTable("orders", MetaData(), Column("number", String, primary_key=True))
    engine = create_engine(f"sqlite:///{path}")
    orders.create(engine)
    sessions = sessionmaker(engine)

    def total() -> int:
        with sessions() as session:
            return session.scalar(select(func.count()).select_from(orders)) or 0

    yield Table(sessions.begin, lambda session, number: session.execute(orders.insert().values(number=number)), total)
    engine.dispose()


def of_django() -> Iterator[Table]:
    from django.conf import settings
    from django.db import connection, transaction

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})

    def execute(statement: str, *values: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone() if cursor.description else None

    execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")
    yield Table(
        transaction.atomic,
        lambda _, number: execute("INSERT INTO orders VALUES (%s)", number),
        lambda: execute("SELECT COUNT(*) FROM orders")[0],
    )
    execute("DROP TABLE orders")


def states(gateway: MemoryGateway) -> list[str]:
    return [claim.state for claim in gateway.claims]


@pytest.fixture
def place(table: Table, oncegate: MemoryGateway) -> Callable[[str, list[Exception]], str]:
    """Places an order once. The work raises the errors that it is given, each at one of its runs, before the commit."""

    def number_of(number: str, errors: list[Exception]) -> dict[str, str]:
        return {"order": number}

    @once(Client(), operation="order.place", contents=number_of, nothing_happened=OutOfStock)
    def placed(number: str, errors: list[Exception]) -> str:
        with table.transaction() as opened:
            assert states(oncegate) == ["in_progress"], "it is reported after the commit"
            table.insert(opened, number)
            if errors:
                raise errors.pop()
        return f"order {number}"

    return lambda number, errors: placed(number, errors).value()


def test_what_is_committed_is_a_success(place: Any, table: Table, oncegate: MemoryGateway) -> None:
    assert [place("7", []), place("7", [])] == ["order 7", "order 7"]
    assert (table.total(), states(oncegate)) == (1, ["succeeded"])


def test_what_is_rolled_back_by_a_declared_error_runs_again(place: Any, table: Table, oncegate: MemoryGateway) -> None:
    with pytest.raises(OutOfStock):
        place("7", [OutOfStock()])
    assert (table.total(), states(oncegate)) == (0, [])
    assert place("7", []) == "order 7"
    assert (table.total(), states(oncegate)) == (1, ["succeeded"])


def test_what_is_rolled_back_by_any_other_error_is_unknown(place: Any, table: Table, oncegate: MemoryGateway) -> None:
    # Mail may have been sent before the rollback: only a declared error says that nothing happened.
    with pytest.raises(RuntimeError, match="the bank timed out"):
        place("7", [RuntimeError("the bank timed out")])
    assert (table.total(), states(oncegate)) == (0, ["unknown"])
    with pytest.raises(NotRun):
        place("7", [])
    assert table.total() == 0


def test_a_commit_that_fails_is_no_success(place: Any, table: Table, oncegate: MemoryGateway) -> None:
    with table.transaction() as opened:
        table.insert(opened, "7")
    with pytest.raises(Exception, match="UNIQUE"):
        place("7", [])
    assert (table.total(), states(oncegate)) == (1, ["unknown"])
