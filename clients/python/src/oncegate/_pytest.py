"""The fixture `oncegate` for pytest: a gateway in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import MemoryGateway


@pytest.fixture
def oncegate(monkeypatch: pytest.MonkeyPatch) -> MemoryGateway:
    """A fresh gateway in memory; `ONCEGATE_URL` names it during the test."""
    from .testing import MemoryGateway

    gateway = MemoryGateway()
    monkeypatch.setenv("ONCEGATE_URL", gateway.url)
    monkeypatch.delenv("ONCEGATE_DISABLED", raising=False)
    return gateway
