"""The keys to which parties let others seal: ML-KEM-768 with X25519, in the place of X25519 alone.

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
    # A key of before gets none: its owner makes new keys by a rotation. Its statement stays as it is.
    op.drop_column("parties", "x25519")
    op.add_column("parties", sa.Column("kem", sa.LargeBinary(length=1216)))
