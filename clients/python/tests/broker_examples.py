"""Stub."""


def run(consumer: str, broker: str, gateway: str) -> bool:
    return True
