"""The log of stage changes. For each study that is older than the log, the log has only one entry."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from dpdpca_protocol.messages.log import EMPTY, LogEntry
from dpdpca_protocol.wire.identifiers import Digest

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    log = op.create_table(
        "log",
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("time", sa.String(20), nullable=False),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.UniqueConstraint("previous", name="one_chain"),
    )
    known = "SELECT study FROM studies WHERE study NOTNULL ORDER BY created_at, id"
    previous = EMPTY
    for position, (study,) in enumerate(op.get_bind().exec_driver_sql(known).all(), 1):
        entry = LogEntry(position, previous, datetime.now(UTC), "known", Digest.parse(study))
        op.execute(log.insert().values(**entry.to_body(), digest=entry.digest.hex()))
        previous = entry.digest
