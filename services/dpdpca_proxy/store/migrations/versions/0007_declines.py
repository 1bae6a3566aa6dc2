"""Owners' signed statements for a data user that they do not take part in a study.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "declines",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.study"]),
        sa.ForeignKeyConstraint(["owner"], ["parties.party"]),
        sa.PrimaryKeyConstraint("study", "owner", name="one_owner_one_decline"),
    )
