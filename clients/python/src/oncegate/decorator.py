"""`@once(client, …)`: the function runs once for each value of its contents, and returns the answer of `Client.once`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Union, overload

from . import _work
from .aio import AsyncClient
from .client import Client, WorkLimits
from .errors import ResultNotStored
from .values import Answer, Duplicate

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")

#: A function of the same arguments that returns the contents, or the names of parameters that are the contents.
Contents = Union[Callable[..., Any], Sequence[str]]


@overload
def once(
    client: Client, *, operation: str, contents: Contents, fingerprint: Contents | None = None, **terms: Unpack[WorkLimits]
) -> Callable[[Callable[P, R]], Callable[P, Answer[R]]]: ...


@overload
def once(
    client: AsyncClient, *, operation: str, contents: Contents, fingerprint: Contents | None = None, **terms: Unpack[WorkLimits]
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, Answer[R]]]]: ...


def once(
    client: Client | AsyncClient,
    *,
    operation: str,
    contents: Contents,
    fingerprint: Contents | None = None,
    **terms: Unpack[WorkLimits],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes calls of a function pass once. The decorated function returns `Done`, `Duplicate` or `Mismatch`.

        @once(client, operation="order.submit", contents=["order_id"])
        def submit(order_id: str, note: str) -> Receipt: ...

    A duplicate whose result was not stored raises `ResultNotStored`. The grant, with its fence, is `current()`. Inside a transaction of
    Django the call is refused: a success that is reported before the commit would stay if the transaction is rolled back.
    """
    if not isinstance(client, (Client, AsyncClient)):
        raise TypeError(f"client is a Client or AsyncClient, got {type(client).__name__}; write @once(client, operation=…, contents=…)")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _work.check_work(function, "AsyncClient" if isinstance(client, Client) else "Client")
        signature = inspect.signature(function)
        contents_of = _selector("contents", contents, signature)
        fingerprint_of = None if fingerprint is None else _selector("fingerprint", fingerprint, signature)
        of_claim: dict[str, Any] = dict(terms)
        plan = _work.Plan.of(function, of_claim)

        def given(args: Any, kwargs: Any) -> dict[str, Any]:
            return of_claim if fingerprint_of is None else {**of_claim, "fingerprint": fingerprint_of(*args, **kwargs)}

        if isinstance(client, AsyncClient):

            @functools.wraps(function)
            async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
                what = contents_of(*args, **kwargs)
                return _complete(await client._once(operation, what, lambda _: function(*args, **kwargs), given(args, kwargs), plan))

            return async_wrapper

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            what = contents_of(*args, **kwargs)
            return _complete(client._once(operation, what, lambda _: function(*args, **kwargs), given(args, kwargs), plan))

        return wrapper

    return decorate


def _complete(answer: Answer[Any]) -> Answer[Any]:
    if isinstance(answer, Duplicate) and answer.result_omitted is not None:
        raise ResultNotStored(answer.result_omitted, answer.global_id)
    return answer


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
