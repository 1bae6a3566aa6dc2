"""Alembic migrations; they travel inside the package."""
