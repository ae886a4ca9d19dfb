"""Events of calls, and the log that they go to without a hook of the application's own."""

from __future__ import annotations

import logging

from .values import Event

logger = logging.getLogger("oncegate")

_LEVELS = {
    "retry": logging.INFO,
    "unavailable": logging.WARNING,
    "disabled": logging.WARNING,
    "proceeded": logging.WARNING,
    "lost": logging.WARNING,
    "lock_lost": logging.WARNING,
    "result_omitted": logging.WARNING,
    "mismatch": logging.INFO,
    "refused": logging.INFO,
    "outcome_invalid": logging.WARNING,
    "outcome_refused": logging.ERROR,
    "not_settled": logging.ERROR,
    "hook_failed": logging.ERROR,
}


def level_of(event: Event) -> int:
    level = _LEVELS.get(event.name, logging.DEBUG)
    if level == logging.DEBUG and (event.fields.get("degraded") or event.fields.get("late")):
        return logging.WARNING
    return level


def log_event(event: Event, *, failed: bool = False) -> None:
    """Writes the event to the logger `oncegate`. A hook of your own may call it."""
    level = level_of(event)
    if logger.isEnabledFor(level):
        fields = " ".join(f"{name}={_written(value)}" for name, value in event.fields.items() if value is not None)
        target = f"{event.operation} {event.global_id or '-'}"
        logger.log(level, "%s %s %s", event.name, target, fields, exc_info=failed, extra={"oncegate_event": event})


def log_crash(crash: BaseException) -> None:
    """Writes down a mistake of the client itself, in a thread or task that has no caller."""
    logger.error("A background thread failed: %r; please report it", crash, exc_info=crash)


def _written(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
