"""The log of what studies went through; those of before are known to it, no more."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from dpdpca_protocol.identifiers import Digest
from dpdpca_user_service.store.log import append_entry

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "log",
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("time", sa.String(20), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.UniqueConstraint("previous", name="one_chain"),
    )
    connection = op.get_bind()
    known = "SELECT study FROM studies WHERE study NOTNULL ORDER BY created_at, id"
    for (study,) in connection.exec_driver_sql(known).all():
        append_entry(connection, "known", Digest.parse(study), datetime.now(UTC))
