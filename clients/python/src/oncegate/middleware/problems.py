"""Refusals: problem documents (RFC 9457), one for each code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import NotCanonical, NotRun, OncegateError, Rejected, ResultNotStored, Unavailable
from ..events import logger
from ..values import Duplicate, Mismatch

STATUS = {
    "idempotency_key_invalid": 400,
    "principal_missing": 400,
    "ambiguous_target": 400,
    "invalid_request": 400,
    "duplicate": 409,
    "response_not_stored": 409,
    "length_required": 411,
    "body_too_large": 413,
    "contents_not_canonical": 422,
    "fingerprint_mismatch": 422,
    "quota_exceeded": 429,
    "body_not_seen": 500,
    "identity_differs": 500,
    "not_supported": 501,
    "store_unavailable": 503,
}


@dataclass(frozen=True)
class Problem:
    """A refusal."""

    code: str
    detail: str
    #: More members of the document: `state`, `response_status`.
    members: Mapping[str, Any] = field(default_factory=dict)
    #: More fields of the response.
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def document(self) -> dict[str, Any]:
        title = self.code.replace("_", " ").capitalize()
        standard = {"type": f"urn:oncegate:problem:{self.code}", "title": title, "status": self.status, "detail": self.detail}
        return {**standard, "code": self.code, **self.members}

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store"), *self.fields]

    @property
    def body(self) -> bytes:
        return json.dumps(self.document).encode()


def retry_after(seconds: float) -> tuple[tuple[str, str], ...]:
    return (("Retry-After", str(max(1, math.ceil(seconds)))),)


def problem_of(end: Duplicate[Any] | Mismatch | OncegateError) -> Problem | None:
    """The meaning in HTTP of an answer or error of a client; None where the error says nothing to a caller."""
    if isinstance(end, Mismatch):
        return Problem("fingerprint_mismatch", "The operation was requested before with other values; send a fresh key for each operation.")
    if isinstance(end, Duplicate):
        return _problem_of_duplicate(end)
    if isinstance(end, NotRun):
        return problem_of(end.answer)
    if isinstance(end, ResultNotStored):
        detail = "The operation was done before, but its result was not stored: look up its effect."
        return Problem("response_not_stored", detail, {"state": "succeeded"})
    if isinstance(end, Unavailable):
        return unavailable(end.may_have_acted)
    if isinstance(end, Rejected):
        if end.code == "identity_differs":
            return Problem(
                "identity_differs", "The service and its gateway do not agree on operations; nothing was done. Its log says why."
            )
        if end.status == 429:
            detail = "Too many requests; nothing was done. Repeat it later."
            return Problem("quota_exceeded", detail, fields=retry_after(end.retry_after or 1))
        # A mistake of the service, not of its caller.
        return unavailable()
    if isinstance(end, NotCanonical):
        return Problem("contents_not_canonical", f"{end}.")
    return None


def problem_of_error(error: OncegateError) -> Problem | None:
    """As `problem_of`. What is no mistake of the caller is logged: an operator must act on it."""
    problem = problem_of(error)
    if isinstance(error, Rejected) and error.status != 429:
        logger.error("The gateway refused a claim: %s", error)
    return problem


def unavailable(may_have_acted: bool = False) -> Problem:
    detail = "The request was not started, since its key could not be claimed; repeat it with the same key."
    if may_have_acted:
        detail = (
            "The request was not started, but a gateway may have taken its key. Repeat it with the same key: if it was taken, the "
            "answer is 409 until the claim ends or is settled."
        )
    return Problem("store_unavailable", detail, fields=retry_after(1))


def _problem_of_duplicate(duplicate: Duplicate[Any]) -> Problem:
    if duplicate.state == "in_progress":
        detail = "The first request for this operation is still running; repeat it later."
        return Problem("duplicate", detail, {"state": "in_progress"}, retry_after(duplicate.retry_after))
    if duplicate.state == "unknown":
        detail = "The outcome of the first request is unknown, so it does not run again: look up its effect."
        return Problem("duplicate", detail, {"state": "unknown"})
    return Problem("response_not_stored", "The first request is done, but its response was not stored.", {"state": "succeeded"})
