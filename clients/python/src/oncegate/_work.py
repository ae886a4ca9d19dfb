"""Requirements of `once` and its decorator on the work, checked before a claim: its parameters, its result, and no transaction."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _results, options
from .errors import NothingHappened, ResultNotStored
from .values import Duplicate

_NAMES = ("result", "serialize", "deserialize", "nothing_happened")


@dataclass(frozen=True)
class Plan:
    """Writing and reading of the work's result, and the errors of the work that had no effect."""

    kind: Any
    serialize: Callable[[Any], Any] | None
    deserialize: Callable[[Any], Any] | None
    harmless: tuple[type[BaseException], ...]

    @classmethod
    def of(cls, work: Callable[..., Any], given: dict[str, Any]) -> Plan:
        """Takes the options of the work out of `given`."""
        result, serialize, deserialize, harmless = (given.pop(name, None) for name in _NAMES)
        for name, function in (("serialize", serialize), ("deserialize", deserialize)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is a function of the result, got {type(function).__name__}")
        kind = _results.return_type(work) if result is None else result
        if serialize is None:
            _results.check_type(kind)
        return cls(kind, serialize, deserialize, options.exceptions("nothing_happened", harmless or ()))

    def read(self, answer: Any) -> Any:
        """The answer to a duplicate with its result read back."""
        if not isinstance(answer, Duplicate) or answer.state != "succeeded" or answer.result_omitted is not None:
            return answer
        try:
            if self.deserialize is not None:
                result = self.deserialize(answer.result)
            else:
                result = answer.result if self.serialize is not None else _results.decode(answer.result, self.kind)
        except Exception as error:
            # It was stored by another version of the service.
            raise ResultNotStored("unreadable", answer.global_id) from error
        return Duplicate(**{**vars(answer), "result": result})


def check_work(work: Any, other: str) -> None:
    """Refuses what cannot be reported on completion."""
    if not callable(work):
        raise TypeError(f"work is a function that takes the grant, got {type(work).__name__}; write lambda grant: …")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError("work is a generator, whose end the client cannot see; return its result instead")
    if other == "AsyncClient" and inspect.iscoroutinefunction(work):
        raise TypeError("work is a coroutine function; use AsyncClient")


def check_parameters(work: Any) -> None:
    """Refuses work that does not take the grant: its error would leave the operation unknown."""
    code: Any = getattr(work, "__code__", None)
    if isinstance(work, types.FunctionType) and code.co_argcount == 1 and not code.co_kwonlyargcount:
        return  # The usual case, and much faster than a signature.
    try:
        inspect.signature(work).bind(None)
    except TypeError as error:
        raise TypeError(f"work takes one argument, the grant ({error}); write lambda grant: …") from error
    except ValueError:
        pass  # A function of C without a signature.


def check_result(result: Any) -> None:
    """Refuses a result that is still running when the work returns it."""
    if inspect.iscoroutine(result):
        result.close()
        raise NothingHappened("the work is a coroutine, which only AsyncClient runs; nothing has run")
    if _results.ends_later(result):
        raise TypeError(f"the work returned {type(result).__name__}, whose end the client cannot see, so its outcome is unknown")


def check_transaction(given: Any) -> None:
    """Raises RuntimeError inside a transaction of Django, unless the caller allows it. That of a test around it does not count."""
    options.choice("inside_transaction", given, ("refuse", "allow"))
    database = sys.modules.get("django.db")
    if database is None or given == "allow":
        return
    try:
        active = [each.alias for each in database.connections.all(initialized_only=True) if _is_in_transaction(each)]
    except Exception:  # Django is imported, but not configured here.
        return
    if active:
        raise RuntimeError(
            f"a transaction of the database {active[0]!r} is active: a success reported before its commit would stay if it is rolled back; "
            "call this outside of transaction.atomic() and open the transaction inside the work, or pass inside_transaction='allow'"
        )


def _is_in_transaction(connection: Any) -> bool:
    blocks = [block for block in connection.atomic_blocks if not getattr(block, "_from_testcase", False)]
    return bool(connection.in_atomic_block and blocks)
