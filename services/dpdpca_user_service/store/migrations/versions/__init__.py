"""Alembic migrations. They are part of the package."""
