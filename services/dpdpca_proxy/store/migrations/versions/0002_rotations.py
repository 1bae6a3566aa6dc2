"""Key rotations: which key replaced which key of a party, with the statement that proves it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "rotations",
        sa.Column("party", sa.String(64), nullable=False),
        sa.Column("successor", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["party"], ["parties.party"]),
        sa.ForeignKeyConstraint(["successor"], ["parties.party"]),
        sa.PrimaryKeyConstraint("party", name="one_key_one_successor"),
        sa.UniqueConstraint("successor", name="one_key_one_predecessor"),
    )
