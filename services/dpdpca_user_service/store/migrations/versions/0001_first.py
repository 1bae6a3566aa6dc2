"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_STAGES = "'drafted', 'signed', 'open', 'counted', 'released', 'fitted', 'published', 'cancelled', 'failed'"


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("release", sa.String(8), nullable=False),
        sa.Column("draft", sa.LargeBinary, nullable=False),
        sa.Column("media_type", sa.String(40), nullable=False),
        sa.Column("proxy_url", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(12), nullable=False),
        sa.Column("updated_at", sa.String(20), nullable=False),
        sa.Column("publish", sa.Boolean, nullable=False),
        sa.Column("study", sa.String(64)),
        sa.Column("manifest", sa.LargeBinary),
        sa.Column("secret", sa.LargeBinary),
        sa.Column("challenge", sa.LargeBinary),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("bundle", sa.LargeBinary),
        sa.Column("model", sa.LargeBinary),
        sa.Column("published", sa.LargeBinary),
        sa.Column("key_progress", sa.Float, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("seconds", sa.Text, nullable=False),
        sa.Column("problem_slug", sa.String(60)),
        sa.Column("problem", sa.String(1000)),
        sa.CheckConstraint(f"stage IN ({_STAGES})", name="stage_is_known"),
        sa.UniqueConstraint("study", name="one_row_a_study"),
    )
    op.create_table(
        "release_chunks",
        sa.Column("id", sa.String(32), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
