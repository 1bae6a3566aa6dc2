"""Part of a migration: on PostgreSQL, gives columns the types that SQLite's columns have in effect."""

import sqlalchemy as sa
from alembic import op


def widen_columns() -> None:
    """Changes all columns of texts to `TEXT` and all columns of whole numbers to `BIGINT`.

    The first schemas state lengths and sizes. SQLite ignores them, but PostgreSQL would refuse a value that
    is longer.
    """
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    tables = sa.inspect(connection)
    for table in sorted(set(tables.get_table_names()) - {"alembic_version"}):
        for column in tables.get_columns(table):
            if isinstance(column["type"], sa.String):
                op.alter_column(table, column["name"], type_=sa.Text())
            elif isinstance(column["type"], sa.Integer):
                op.alter_column(table, column["name"], type_=sa.BigInteger())
