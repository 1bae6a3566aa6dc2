"""Chains of studies."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "chains",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("base", sa.LargeBinary, nullable=False),
        sa.Column("proxy_url", sa.String(600), nullable=False),
        sa.Column("publish", sa.Boolean, nullable=False),
        sa.Column("in_clear", sa.Boolean, nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("scales", sa.Boolean, nullable=False),
        sa.Column("updated_at", sa.String(20), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("rounds", sa.Text, nullable=False),
        sa.Column("problem_slug", sa.String(60)),
        sa.Column("problem", sa.String(1000)),
        sa.CheckConstraint(
            "state IN ('running', 'done', 'cancelled', 'failed')", name="chain_state_is_known"
        ),
    )
