"""The grant that the current work runs under, as the work gets it."""

from __future__ import annotations

from typing import Union

from ._grant import current_grant
from .aio import AsyncGrant
from .client import Grant


def current() -> Union[Grant, AsyncGrant, None]:
    """The grant of the work that runs here, for its fence and `is_live`. None outside of `once`."""
    grant = current_grant()
    return grant if isinstance(grant, (Grant, AsyncGrant)) else None
