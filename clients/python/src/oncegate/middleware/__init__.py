"""The `Idempotency-Key` middleware without a framework: what a request is, what of its response is kept, what a repeat gets.

The adapters of `oncegate.contrib` carry it out; the rules are those of the gateway's own proxy.
"""

from .problems import Problem
from .rules import Rules, shared_keys

__all__ = ["Problem", "Rules", "shared_keys"]
