"""Usage: python -m vector_apps --app NAME --port PORT

Starts the test application of a row of the matrix, on its server.
"""

from __future__ import annotations

import argparse
import importlib
import socket

#: Row → module, application, server.
ROWS = {
    "starlette": ("starlette_app", "starlette", "uvicorn"),
    "fastapi": ("starlette_app", "fastapi", "uvicorn"),
    "flask": ("flask_app", "flask", "gunicorn"),
    "django-wsgi": ("django_app", "wsgi", "gunicorn"),
    "django-asgi": ("django_app", "asgi", "uvicorn"),
    "starlette-hypercorn": ("starlette_app", "starlette", "hypercorn"),
    "starlette-granian": ("starlette_app", "starlette", "granian"),
    "starlette-daphne": ("starlette_app", "starlette", "daphne"),
    "django-daphne": ("django_app", "asgi", "daphne"),
    "flask-waitress": ("flask_app", "flask", "waitress"),
    "litestar": ("litestar_app", "litestar", "uvicorn"),
    "quart": ("quart_app", "quart", "hypercorn"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", required=True, choices=sorted(ROWS))
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    module, application, server = ROWS[given.app]
    listener = socket.create_server(("127.0.0.1", given.port), backlog=256)
    found = importlib.import_module(f"vector_apps.{module}")
    app = getattr(found, application)()
    if found.LACKS:
        print("lacks", *found.LACKS, flush=True)
    if server != "granian":  # Its workers listen themselves.
        print(f"listening 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    getattr(importlib.import_module("vector_apps.servers"), server)(app, listener)


if __name__ == "__main__":
    main()
