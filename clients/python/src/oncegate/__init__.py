"""Do each operation once: the client of Oncegate, an idempotency gateway.

    client = Client(["http://10.0.0.5:8080", "http://10.0.0.6:8080"], credential="shop.SECRET")
    answer = client.once("order.submit", {"order_id": "A-1001"}, lambda grant: place(order, fence=grant.fence))

`once` claims the operation, renews the claim while the work runs, and reports the outcome. A duplicate is an answer (`Duplicate`), not an
exception. `AsyncClient` is the same for asyncio.
"""

from ._batches import SettleItem
from ._current import current
from .aio import AsyncClient, AsyncGrant, AsyncHold, AsyncLock
from .client import ClaimItem, Client, Grant, Hold, Lock
from .contents import JsonText, canonical, global_id
from .decorator import once
from .errors import (
    Cause,
    LockNotAcquired,
    NotCanonical,
    NothingHappened,
    NotRun,
    NotSettled,
    OncegateError,
    OutcomeRefused,
    Rejected,
    ResultNotStored,
    Unavailable,
)
from .events import log_event
from .values import Answer, Done, Duplicate, Event, LockHolder, LockRecord, Mismatch, Record, Settled

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncGrant",
    "AsyncHold",
    "AsyncLock",
    "Cause",
    "ClaimItem",
    "Client",
    "Done",
    "Duplicate",
    "Event",
    "Grant",
    "Hold",
    "JsonText",
    "Lock",
    "LockHolder",
    "LockNotAcquired",
    "LockRecord",
    "Mismatch",
    "NotCanonical",
    "NotRun",
    "NotSettled",
    "NothingHappened",
    "OncegateError",
    "OutcomeRefused",
    "Record",
    "Rejected",
    "ResultNotStored",
    "SettleItem",
    "Settled",
    "Unavailable",
    "canonical",
    "current",
    "global_id",
    "log_event",
    "once",
]
