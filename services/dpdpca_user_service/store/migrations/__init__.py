"""The Alembic migrations of the service's database. The migrations are part of the package."""
