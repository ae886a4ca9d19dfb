"""FastAPI: as `oncegate.contrib.starlette`."""

from .starlette import OnceMiddleware, Problem, Rules, drain, install, install_errors, shared_keys, watch_errors

__all__ = ["OnceMiddleware", "Problem", "Rules", "drain", "install", "install_errors", "shared_keys", "watch_errors"]
