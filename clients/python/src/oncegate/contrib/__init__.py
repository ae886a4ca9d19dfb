"""Middleware for web frameworks, and a base for Celery tasks."""
