"""Handlers on threads: a response in pieces that the server pulls, and a run that continues if the server stops."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from .. import _claims, _telemetry
from .._grant import set_current
from ..client import Client, Grant
from ..events import logger
from .engine import Engine
from .fields import WITHOUT_BODY
from .recorder import Recorder


class BlockingRun:
    """One run of a handler: its grant, the recorder of its response, and the report."""

    def __init__(self, client: Client, engine: Engine, state: _claims.GrantState):
        self._client, self._engine, self._state = client, engine, state
        self.grant = Grant(client, state)
        self.recorder = Recorder(engine.rules, state.degraded)
        self.context = contextvars.copy_context()
        self._span = _telemetry.RunSpan(engine.rules.operation)
        self.is_reported = False
        self._ends = engine.core.clock() + engine.exchange_max
        self.grant._keep()

    @property
    def stops_when_gone(self) -> bool:
        return self._engine.rules.stop_when_gone

    @property
    def is_over_time(self) -> bool:
        return self._engine.core.clock() >= self._ends

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a part of the handler, with its grant. All parts have one context, as frameworks expect."""
        return self.context.run(self._with_grant, function, arguments)

    def _with_grant(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with set_current(self.grant), self._span.use():
            return function(*arguments)

    def report(self, error: BaseException | None = None, *, complete: bool = True) -> None:
        if not self.is_reported:
            self.is_reported = True
            self._span.end(error)
            try:
                report = self._engine.report(self._state, self.recorder, error, complete)
                self._client._reported(self._engine.rules.operation, report)
            finally:
                self._state.ended = True

    def failing(self) -> AbstractContextManager[None]:
        """Reports what a part of the handler raises."""
        return _Failing(self)


class _Failing(AbstractContextManager[None]):
    def __init__(self, run: BlockingRun):
        self._run = run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._run.report(error, complete=False)


class Pieces(Iterator[bytes]):
    """The body of a response. The piece that completes it waits for the report."""

    def __init__(self, run: BlockingRun, pieces: Iterable[bytes], before_first: Callable[[], None] = lambda: None):
        self._run, self._pieces, self._before_first = run, pieces, before_first
        #: A list tells which piece is the last one.
        self._count = len(pieces) if isinstance(pieces, Sequence) and not isinstance(pieces, (bytes, str)) else None
        self._iterator: Iterator[bytes] | None = None
        self._number = 0
        self._over = False

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        try:
            piece = self._next()
            while self._run.recorder.status in WITHOUT_BODY:
                piece = self._next()
        except StopIteration:
            self._over = True
            recorder = self._run.recorder
            self._run.report(complete=recorder.has_begun and not recorder.breaks_off)
            self._before_first()
            raise
        if self._number == self._count or self._run.recorder.is_filled:
            self._run.report()
        self._before_first()
        return piece

    def _next(self) -> bytes:
        with self._run.failing():
            if self._iterator is None:
                self._iterator = self._run.call(iter, self._pieces)
            done = object()
            piece = self._run.call(next, self._iterator, done)
        if piece is done:
            raise StopIteration
        self._number += 1
        return self._run.recorder.add(piece)

    def close(self) -> None:
        """Ends the response. If the server stopped before the end, the caller has disconnected, and the run is completed here."""
        try:
            if not self._run.is_reported:
                self._run.grant.caller_gone.set()
                self._finish()
        finally:
            self._run.report(complete=False)
            close = getattr(self._pieces, "close", None)
            if close is not None:
                self._run.call(close)

    def _finish(self) -> None:
        try:
            while not self._run.stops_when_gone and not self._run.is_over_time:
                next(self)
        except StopIteration:
            pass
        except Exception as error:
            logger.error("A handler failed after its caller had disconnected", exc_info=error)
