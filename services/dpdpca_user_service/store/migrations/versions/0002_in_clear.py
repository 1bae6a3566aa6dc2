"""Studies whose components may be published in clear."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("studies", sa.Column("in_clear", sa.Boolean, nullable=False, server_default=sa.false()))
