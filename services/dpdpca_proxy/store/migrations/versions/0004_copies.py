"""A keyed hash of each chunk's ciphertexts, by which copies are found although chunks have salts.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Chunks of before belong to studies of message format 1, which accept no statement any more.
    nothing = "0" * 64
    op.add_column("chunks", sa.Column("copy_mark", sa.String(64), nullable=False, server_default=nothing))
