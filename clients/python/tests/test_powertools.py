"""The idempotency utility of Powertools for AWS Lambda over a gateway in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyKeyError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)

from oncegate import Client, NothingHappened
from oncegate.contrib.powertools import OncegatePersistenceLayer
from oncegate.testing import MemoryGateway


@dataclass
class Context:
    """Part of a Lambda's context that the utility needs."""

    remaining: int = 30_000
    function_name: str = "orders"

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining


class Lambda:
    """A handler of orders; `work` may do more."""

    def __init__(self, gateway: MemoryGateway, *, layer: dict[str, Any] | None = None, **config: Any):
        self.runs = 0
        self.work: Callable[[], Any] = lambda: {"order": self.runs}
        self.layer = OncegatePersistenceLayer(gateway.client(nothing_happened=ZeroDivisionError), "orders.place", **(layer or {}))

        @idempotent(persistence_store=self.layer, config=IdempotencyConfig(**{"event_key_jmespath": "id", **config}))
        def handler(event: dict[str, Any], context: Any) -> Any:
            self.runs += 1
            return self.work()

        self.handler = handler

    def __call__(self, event: dict[str, Any], context: Context | None = None) -> Any:
        return self.handler(event, context or Context())


def raises(error: BaseException) -> Any:
    raise error


def test_a_repeat_gets_the_first_response(oncegate: MemoryGateway) -> None:
    place = Lambda(oncegate)
    assert [place({"id": "A-1", "try": number}) for number in range(3)] == [{"order": 1}] * 3
    assert place({"id": "A-2"}) == {"order": 2}
    # Another execution environment, and a response that is None.
    other = Lambda(oncegate)
    assert other({"id": "A-1"}) == {"order": 1}
    other.work = lambda: None
    assert [other({"id": "A-3"}) for _ in range(2)] == [None, None]
    assert (place.runs, other.runs) == (2, 1)


def test_in_progress_elsewhere(oncegate: MemoryGateway) -> None:
    place, other = Lambda(oncegate), Lambda(oncegate)

    def work() -> Any:
        with pytest.raises(IdempotencyAlreadyInProgressError):
            other({"id": "A-1"})
        return {"order": 1}

    place.work = work
    assert place({"id": "A-1"}) == {"order": 1}
    assert other.runs == 0


def test_a_lambda_that_was_stopped_blocks_until_its_time_is_over(oncegate: MemoryGateway) -> None:
    place, other = Lambda(oncegate), Lambda(oncegate)
    # As a time-out: no exception that the utility sees.
    place.work = lambda: raises(SystemExit())
    with pytest.raises(SystemExit):
        place({"id": "A-1"}, Context(remaining=20_000))
    with pytest.raises(IdempotencyAlreadyInProgressError):
        other({"id": "A-1"})
    oncegate.advance(21)
    assert other({"id": "A-1"}) == {"order": 1}


def test_retention_validation_and_keys(oncegate: MemoryGateway) -> None:
    place = Lambda(oncegate, expires_after_seconds=60, payload_validation_jmespath="cents", raise_on_no_idempotency_key=True)
    assert place({"id": "A-1", "cents": 5}) == {"order": 1}
    with pytest.raises(IdempotencyValidationError):
        place({"id": "A-1", "cents": 6})
    oncegate.advance(61)
    assert place({"id": "A-1", "cents": 6}) == {"order": 2}
    with pytest.raises(IdempotencyKeyError):
        place({"other": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [Lambda(oncegate)({"other": 1}) for _ in range(2)] == [{"order": 1}] * 2


@pytest.mark.parametrize(
    ("on_exception", "error", "runs"),
    [
        ("release", RuntimeError("lost"), 2),
        ("unknown", RuntimeError("lost"), 1),
        ("unknown", NothingHappened("sold out"), 2),
        ("unknown", ZeroDivisionError(), 2),
    ],
)
def test_exceptions(oncegate: MemoryGateway, on_exception: str, error: Exception, runs: int) -> None:
    place = Lambda(oncegate, layer={"on_exception": on_exception})
    place.work = lambda: raises(error)
    with pytest.raises(type(error)):
        place({"id": "A-1"})
    place.work = lambda: {"order": place.runs}
    if runs == 2:
        assert place({"id": "A-1"}) == {"order": 2}
    else:
        with pytest.raises(IdempotencyPersistenceLayerError, match="unknown"):
            place({"id": "A-1"})
    assert place.runs == runs


def test_outages(oncegate: MemoryGateway) -> None:
    place = Lambda(oncegate)
    place.layer._client = oncegate.client(claim_within=0.2, settle_within=0.2)
    with oncegate.unavailable(), pytest.raises(IdempotencyPersistenceLayerError, match="no gateway"):
        place({"id": "A-1"})
    assert place.runs == 0

    def work() -> Any:
        oncegate.fail_next(1000)
        return {"order": 1}

    place.work = work
    with pytest.raises(IdempotencyPersistenceLayerError, match="accepted"):
        place({"id": "A-1"})


def test_a_function_with_a_local_cache(oncegate: MemoryGateway) -> None:
    layer = OncegatePersistenceLayer(Client(), "orders.place")
    runs: list[str] = []

    @idempotent_function(  # type: ignore[untyped-decorator]
        data_keyword_argument="order",
        persistence_store=layer,
        config=IdempotencyConfig(use_local_cache=True, lambda_context=Context()),  # type: ignore[arg-type]
    )
    def place(order: str) -> str:
        runs.append(order)
        return f"placed {order}"

    assert [place(order="A-1") for _ in range(3)] == ["placed A-1"] * 3
    with oncegate.unavailable():
        assert place(order="A-1") == "placed A-1"
    assert runs == ["A-1"]


def test_a_wrong_option_fails_when_the_layer_is_made() -> None:
    with pytest.raises(TypeError, match="client is a Client"):
        OncegatePersistenceLayer("client", "orders.place")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_exception is one of"):
        OncegatePersistenceLayer(Client(), "orders.place", on_exception="retry")  # type: ignore[arg-type]
