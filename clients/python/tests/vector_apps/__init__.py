"""Test applications of the middleware vectors (`clients/vectors/middleware.json`), one for each framework."""
