"""`@once(client, …)`: the function runs once for each value of its contents, and returns the answer of `Client.once`."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union, cast

from .aio import AsyncClient
from .client import Client, Limits, Terms, check_work

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A function of the same arguments that returns the contents, or the names of parameters that are the contents.
Contents = Union[Callable[..., Any], Sequence[str]]


def once(
    client: Client | AsyncClient,
    *,
    operation: str,
    contents: Contents,
    fingerprint: Contents | None = None,
    **terms: Unpack[Limits],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes calls of a function pass once. The decorated function returns `Done`, `Duplicate` or `Mismatch`.

        @once(client, operation="order.submit", contents=["order_id"])
        def submit(order_id: str, note: str) -> dict: ...

    The grant, with its fence, is `current()`. Inside a transaction of Django the call is refused: a success that is reported before
    the commit would stay if the transaction is rolled back.
    """
    if not isinstance(client, (Client, AsyncClient)):
        raise TypeError(f"client is a Client or AsyncClient, got {type(client).__name__}; write @once(client, operation=…, contents=…)")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_work(function, "AsyncClient" if isinstance(client, Client) else "Client")
        signature = inspect.signature(function)
        contents_of = _selector("contents", contents, signature)
        fingerprint_of = None if fingerprint is None else _selector("fingerprint", fingerprint, signature)

        def given(args: Any, kwargs: Any) -> Terms:
            refuse_transaction()
            all_terms: Terms = cast(Terms, dict(terms))
            if fingerprint_of is not None:
                all_terms["fingerprint"] = fingerprint_of(*args, **kwargs)
            return all_terms

        if isinstance(client, AsyncClient):

            @functools.wraps(function)
            async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
                named = given(args, kwargs)
                return await client.once(operation, contents_of(*args, **kwargs), lambda _: function(*args, **kwargs), **named)

            return async_wrapper

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            named = given(args, kwargs)
            return client.once(operation, contents_of(*args, **kwargs), lambda _: function(*args, **kwargs), **named)

        return wrapper

    return decorate


def _selector(what: str, selected: Contents, signature: inspect.Signature) -> Callable[..., Any]:
    if callable(selected):
        return selected
    if isinstance(selected, str) or not selected:
        raise TypeError(f"{what} is a function of the same arguments, or a list of parameter names, such as {what}=['order_id']")
    names = list(selected)
    unknown = [name for name in names if name not in signature.parameters]
    if unknown:
        has = ", ".join(signature.parameters) or "none"
        raise TypeError(f"{what} names {', '.join(unknown)}, which is no parameter of the function; it has {has}")

    def select(*args: Any, **kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: bound.arguments[name] for name in names}

    return select


def refuse_transaction() -> None:
    """Raises RuntimeError inside a transaction of Django."""
    database = sys.modules.get("django.db")
    if database is None:
        return
    try:
        active = [each.alias for each in database.connections.all(initialized_only=True) if each.in_atomic_block]
    except Exception:  # Django is imported, but not configured here.
        return
    if active:
        raise RuntimeError(
            f"a transaction of the database {active[0]!r} is active: a success reported before its commit would stay if it is rolled back; "
            "call this outside of transaction.atomic(), and open the transaction inside the function"
        )
