"""Handlers that run apart from their callers, on asyncio: the tasks, the way of their responses to the caller, and the drain."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from ..events import logger

T = TypeVar("T")

#: Of a response that its caller has not read yet; the handler waits for the caller then.
OUTLET_BYTES_MAX = 1024 * 1024
#: A caller that reads nothing for this time counts as disconnected.
STALLED_SECONDS = 30.0

_running: set[asyncio.Task[Any]] = set()


def keep_running(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Starts a task that its caller does not end; a task without a reference could vanish."""
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


def log_end(task: asyncio.Task[Any]) -> None:
    """Logs the error of a handler whose caller has disconnected, since no server logs it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("A handler failed after its caller had disconnected", exc_info=error)


async def drain(timeout: float = 30.0) -> int:
    """Waits until the handlers that run here have ended. Returns how many have not: their outcomes are unknown when their leases end."""
    loop = asyncio.get_running_loop()
    mine = {task for task in _running if task.get_loop() is loop and task is not asyncio.current_task()}
    if not mine:
        return 0
    _, left = await asyncio.wait(mine, timeout=timeout)
    if left:
        logger.warning("%d handlers were still running at the shutdown; their outcomes are unknown when their leases end", len(left))
    return len(left)


class Outlet(Generic[T]):
    """The pieces of a response between a handler and its caller. A caller that disconnects or reads slowly does not end the handler."""

    def __init__(self) -> None:
        self._pieces: collections.deque[tuple[T, int]] = collections.deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = self._left = False

    async def put(self, piece: T, size: int) -> None:
        """Adds a piece; waits while too much is unread."""
        if self._left:
            return
        self._pieces.append((piece, size))
        self._size += size
        self._changed.set()
        while self._size > OUTLET_BYTES_MAX and not self._left:
            self._taken.clear()
            try:
                await asyncio.wait_for(self._taken.wait(), STALLED_SECONDS)
            except asyncio.TimeoutError:
                self.leave()

    async def get(self) -> T | None:
        """The next piece; None at the end."""
        while not self._pieces:
            if self._closed or self._left:
                return None
            self._changed.clear()
            await self._changed.wait()
        piece, size = self._pieces.popleft()
        self._size -= size
        self._taken.set()
        return piece

    def close(self) -> None:
        """No more pieces come."""
        self._closed = True
        self._changed.set()

    def leave(self) -> None:
        """The caller takes no more pieces."""
        self._left = True
        self._pieces.clear()
        self._size = 0
        self._changed.set()
        self._taken.set()
