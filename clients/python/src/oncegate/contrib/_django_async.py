"""An asynchronous view of Django at work, detached from its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import close_old_connections

from .. import _claims
from .._grant import set_current
from ..aio import AsyncClient, AsyncGrant
from ..middleware.asyncio_run import Outlet, keep_running, log_end
from ..middleware.engine import Engine
from ..middleware.fields import WITHOUT_BODY
from ..middleware.recorder import Recorder


class AsyncRun:
    """Runs the view and its stream in a task of their own, which the end of the request does not cancel."""

    def __init__(self, client: AsyncClient, engine: Engine, state: _claims.GrantState, begin: Callable[[Recorder, Any], None]):
        self._client, self._engine, self._state, self._begin = client, engine, state, begin
        self.grant = AsyncGrant(client, state)
        self._recorder = Recorder(engine.rules, state.degraded)
        self._response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outlet: Outlet[bytes] = Outlet()
        self._task: asyncio.Task[None] | None = None
        self._is_reported = self._is_over_time = False

    async def response(self, view: Callable[[], Awaitable[Any]]) -> Any:
        """The response of the view. A stream comes in pieces as they are made."""
        self._task = keep_running(self._work(view))
        try:
            return await asyncio.shield(self._response)
        except asyncio.CancelledError:
            self._gone()
            raise

    def _gone(self) -> None:
        assert self._task is not None
        self.grant.caller_gone.set()
        self._outlet.leave()
        self._task.add_done_callback(log_end)
        if self._engine.rules.stop_when_gone:
            self._task.cancel()

    async def _work(self, view: Callable[[], Awaitable[Any]]) -> None:
        timer = asyncio.get_running_loop().call_later(self._engine.exchange_max, self._time_out, asyncio.current_task())
        self.grant._keep()
        error: BaseException | None = None
        try:
            async with _own_threads():
                with set_current(self.grant), self._engine.run_span():
                    await self._respond(view)
        except BaseException as raised:
            error = raised
            if self._is_over_time and isinstance(raised, asyncio.CancelledError):
                error = TimeoutError(f"the view was stopped after exchange_max, {self._engine.exchange_max:g} s")
            if not self._response.done():
                # The request's task raises it.
                self._response.set_exception(error)
                return
            if error is raised:
                raise
            raise error from raised
        finally:
            timer.cancel()
            try:
                await self._report(error, complete=error is None)
            finally:
                self._outlet.close()
                self.grant._end()

    def _time_out(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._is_over_time = True
            task.cancel()

    async def _respond(self, view: Callable[[], Awaitable[Any]]) -> None:
        response = await view()
        self._begin(self._recorder, response)
        if not response.streaming:
            self._recorder.add(response.content)
            await self._report(None, complete=True)
            self._response.set_result(response)
            return
        content = Content(response)
        response.streaming_content = self._sent()
        # Without a body the head is the whole response: it waits for the report.
        has_body = response.status_code not in WITHOUT_BODY
        if has_body:
            self._response.set_result(response)
        try:
            async for piece in content.pieces():
                if not has_body:
                    continue
                piece = self._recorder.add(piece)
                if self._recorder.is_filled and not self._is_reported:
                    await self._report(None, complete=True)
                await self._outlet.put(piece, len(piece))
        finally:
            await sync_to_async(content.close)()
        if not has_body:
            await self._report(None, complete=True)
            self._response.set_result(response)

    async def _report(self, error: BaseException | None, *, complete: bool) -> None:
        if not self._is_reported:
            self._is_reported = True
            complete = complete and self._recorder.has_begun and not self._recorder.breaks_off
            report = self._engine.report(self._state, self._recorder, error, complete)
            await self._client._reported(self._engine.rules.operation, report)

    async def _sent(self) -> AsyncIterator[bytes]:
        """What the request's task sends. It ends after the report."""
        assert self._task is not None
        try:
            while (piece := await self._outlet.get()) is not None:
                yield piece
            await asyncio.shield(self._task)
        except (asyncio.CancelledError, GeneratorExit):
            self._gone()
            raise


class Content:
    """The content of a streaming response, and what closes it. A close of the response would end it before the run has ended."""

    def __init__(self, response: Any):
        self._is_async = response.is_async
        self._content = response.streaming_content if self._is_async else iter(response)
        self._closers = list(response._resource_closers)
        response._resource_closers.clear()
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        # Django collects an asynchronous content where the server is not asynchronous.
        if not self._is_async:
            yield from self._content
        else:
            yield from async_to_sync(self._collected)()

    async def _collected(self) -> list[bytes]:
        return [self._response.make_bytes(piece) async for piece in self._content]

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._is_async:
            async for piece in self._content:
                yield self._response.make_bytes(piece)
            return
        done = object()
        while (piece := await sync_to_async(lambda: next(self._content, done))()) is not done:
            yield self._response.make_bytes(piece)

    def close(self) -> None:
        for closer in self._closers:
            closer()
        self._closers.clear()


class _own_threads:
    """Runs blocking parts of the view on a separate thread, since the thread of the request ends with the request."""

    async def __aenter__(self) -> None:
        # Without a context there is one thread for all, such as in tests.
        is_needed = SyncToAsync.thread_sensitive_context.get(None) is not None
        self._context = ThreadSensitiveContext() if is_needed else None
        if self._context is not None:
            SyncToAsync.thread_sensitive_context.set(self._context)

    async def __aexit__(self, *_: object) -> None:
        if self._context is None:
            return
        executor = SyncToAsync.context_to_thread_executor.pop(self._context, None)
        if executor is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(executor, close_old_connections)
            executor.shutdown(wait=False)


__all__ = ["AsyncRun", "Content"]
