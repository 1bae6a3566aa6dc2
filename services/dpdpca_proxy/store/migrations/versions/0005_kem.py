"""Each party's key `kem` (ML-KEM-768 with X25519), to which others seal messages, instead of an X25519 key.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A party that enrolled earlier has no `kem` until it rotates its keys. Its X25519 key stays in its stored
    # statement.
    op.drop_column("parties", "x25519")
    op.add_column("parties", sa.Column("kem", sa.LargeBinary(length=1216)))
