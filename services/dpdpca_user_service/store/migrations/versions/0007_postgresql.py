"""On PostgreSQL, columns get the types of SQLite's."""

from dpdpca_runtime.widening import widen_columns

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    widen_columns()
