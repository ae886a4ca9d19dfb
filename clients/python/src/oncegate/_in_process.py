"""Gateways in this process (`oncegate.testing`): the transports call them instead of a socket."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from ._core import Core, Reply, Send
from .errors import Cause


@dataclass(frozen=True)
class Failure:
    """No answer."""

    kind: str


#: By URL.
GATEWAYS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def calls(core: Core, send: Send) -> Generator[float, None, Reply | Cause] | None:
    """One call, which yields the seconds to pause for; None if the gateway is not in this process."""
    gateway = GATEWAYS.get(core.urls[send.at]) if GATEWAYS else None
    return None if gateway is None else _called(core, send, gateway)


def _called(core: Core, send: Send, gateway: Any) -> Generator[float, None, Reply | Cause]:
    request = send.request
    answer = yield from gateway.call(request.method, request.path, request.body, core.headers().get("Authorization"))
    if isinstance(answer, Failure):
        return Cause(core.urls[send.at], answer.kind, "the test asked for it")
    return Reply(*answer)
