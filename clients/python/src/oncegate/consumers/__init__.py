"""Consumers of messages that do each operation once: `consume_once` decides, and thin adapters carry the decision out at their broker."""

from ._decide import Ack, ContentsNotDerived, DeadLetter, Decision, Park, Redeliver, decide
from ._recipe import Recipe, consume_once, consume_once_async

__all__ = [
    "Ack",
    "ContentsNotDerived",
    "DeadLetter",
    "Decision",
    "Park",
    "Recipe",
    "Redeliver",
    "consume_once",
    "consume_once_async",
    "decide",
]
