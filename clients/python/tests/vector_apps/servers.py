"""The servers, each as its users run it, on a socket that listens already."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any


def uvicorn(app: Any, listener: socket.socket) -> None:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    asyncio.run(server.serve(sockets=[listener]))


def hypercorn(app: Any, listener: socket.socket) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    asyncio.run(serve(app, config))


def gunicorn(app: Any, listener: socket.socket) -> None:
    from gunicorn.app.base import BaseApplication

    class Application(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            self.cfg.set("bind", f"fd://{listener.fileno()}")
            self.cfg.set("worker_class", "gthread")
            self.cfg.set("threads", 16)
            self.cfg.set("workers", 1)
            self.cfg.set("loglevel", "warning")

        def load(self) -> Any:
            return app

    listener.set_inheritable(True)
    Application().run()


def waitress(app: Any, listener: socket.socket) -> None:
    from waitress import create_server

    create_server(app, sockets=[listener], threads=16).run()


def granian(app: Any, listener: socket.socket) -> None:
    """Its workers are processes that import the application; one, so that the runs are in one memory."""
    from granian import Granian
    from granian.constants import Interfaces

    port = listener.getsockname()[1]
    listener.close()
    server = Granian("vector_apps.granian_app:app", "127.0.0.1", port, interface=Interfaces.ASGI, log_enabled=False)
    threading.Thread(target=_announce, args=(port,), daemon=True).start()
    server.serve()


def _announce(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
            continue
        print(f"listening 127.0.0.1:{port}", flush=True)
        return


def daphne(app: Any, listener: socket.socket) -> None:
    from daphne.server import Server

    Server(app, endpoints=[f"fd:fileno={listener.fileno()}"], signal_handlers=True).run()
