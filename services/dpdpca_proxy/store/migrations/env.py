"""Runs migrations on the connection that `Database.upgrade` passes.

Migrations cannot be started in any other way.
"""

from alembic import context

from dpdpca_proxy.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
