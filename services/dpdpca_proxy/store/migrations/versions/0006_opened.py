"""The data user's signed statements about the end of a study.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("opened", sa.LargeBinary))
    # The `cancel` statements of earlier cancellations were not kept.
    op.add_column("studies", sa.Column("cancel", sa.LargeBinary))
