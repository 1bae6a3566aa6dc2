"""The number of a lease rises whenever a study is taken. On PostgreSQL, columns get the types of SQLite's.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

from dpdpca_runtime.widening import widen_columns

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Leases of before end here: no process of an earlier version may run any more.
    op.execute("DELETE FROM leases")
    op.add_column("leases", sa.Column("number", sa.Integer(), nullable=False, server_default="0"))
    widen_columns()
