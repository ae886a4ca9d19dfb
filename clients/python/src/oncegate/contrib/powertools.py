"""Powertools for AWS Lambda: a persistence layer for its idempotency utility.

layer = OncegatePersistenceLayer(client, operation="orders.place")

@idempotent(persistence_store=layer)
def handler(event, context): ...
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import STATUS_CONSTANTS, DataRecord

from .. import options
from ..client import Client, Grant
from ..errors import NotRun
from ..values import Duplicate, Mismatch


class OncegatePersistenceLayer(BasePersistenceLayer):
    """Keeps the records of the utility as claims.

    The lease is the time that the Lambda has left; where the utility does not know it, the claim is renewed while the function runs.

    `on_exception`: `release`, as the utility's own layers. With `unknown` an exception may have come after the effect, unless it is
    `NothingHappened` or one of the client's `nothing_happened`: repeats are then stopped with an `IdempotencyPersistenceLayerError` until
    the effect was looked up.
    """

    def __init__(self, client: Client, operation: str, *, on_exception: Literal["release", "unknown"] = "release"):
        if not isinstance(client, Client):
            raise TypeError(f"client is a Client, got {type(client).__name__}")
        self._client, self._operation = client, options.operation(operation)
        self._on_exception = options.choice("on_exception", on_exception, ("release", "unknown"))
        self._grants: dict[str, Grant] = {}
        super().__init__()  # type: ignore[no-untyped-call]

    def _put_record(self, data_record: DataRecord) -> None:
        key = data_record.idempotency_key
        terms: dict[str, Any] = {"retention": f"{self.expires_after_seconds}s"}
        if data_record.in_progress_expiry_timestamp is not None:
            terms["lease"] = max(0.001, data_record.in_progress_expiry_timestamp / 1000 - time.time())
        if data_record.payload_hash:
            terms["fingerprint"] = data_record.payload_hash
        answer = self._client.claim(self._operation, {"key": key}, **terms)
        if isinstance(answer, Grant):
            # A Lambda has no more time than its lease, and one that was stopped must not renew it.
            self._grants[key] = answer if "lease" in terms else answer.__enter__()
        elif isinstance(answer, Mismatch):
            raise IdempotencyValidationError("Payload does not match stored record for this event key")
        elif answer.state == "unknown":
            raise NotRun(answer)
        else:
            raise IdempotencyItemAlreadyExistsError(old_data_record=_record(key, answer.state, answer.result, data_record.payload_hash))

    def _get_record(self, idempotency_key: str) -> DataRecord:
        found = self._client.lookup(self._client.global_id(self._operation, {"key": idempotency_key}))
        if found is None:
            raise IdempotencyItemNotFoundError
        if found.state == "unknown":
            raise NotRun(Duplicate("unknown", None, 1.0, None, None, True, None, str(found.fields.get("global_id"))))
        return _record(idempotency_key, found.state, found.result, "")

    def _update_record(self, data_record: DataRecord) -> None:
        self._grants.pop(data_record.idempotency_key).succeed({"response": json.loads(data_record.response_data)})

    def delete_record(self, data: dict[str, Any], exception: Exception) -> None:
        grant = self._grants.get(self._get_hashed_idempotency_key(data=data) or "")
        if grant is not None and self._on_exception == "unknown" and not isinstance(exception, grant._state.harmless):
            grant.give_up()
        super().delete_record(data=data, exception=exception)

    def _delete_record(self, data_record: DataRecord) -> None:
        grant = self._grants.pop(data_record.idempotency_key, None)
        if grant is not None and not grant._state.settled:
            grant.fail()


def _record(key: str, state: str, result: Any, payload_hash: str) -> DataRecord:
    if state != "succeeded":
        return DataRecord(key, STATUS_CONSTANTS["INPROGRESS"], payload_hash=payload_hash)
    response = result.get("response") if isinstance(result, dict) else None
    return DataRecord(key, STATUS_CONSTANTS["COMPLETED"], None, None, json.dumps(response), payload_hash)


__all__ = ["OncegatePersistenceLayer"]
