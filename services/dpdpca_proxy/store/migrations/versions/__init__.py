"""Alembic migrations. The migrations are part of the package."""
