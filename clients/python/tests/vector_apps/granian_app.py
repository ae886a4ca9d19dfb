"""The application that the worker of granian imports."""

from .starlette_app import starlette

app = starlette()
