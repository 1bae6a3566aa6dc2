"""Runs migrations on the connection that `Database.upgrade` hands over; there is no other way in."""

from alembic import context

from dpdpca_user_service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
