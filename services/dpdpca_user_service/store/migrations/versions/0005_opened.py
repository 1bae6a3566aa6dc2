"""The statement that a release is opened, and cancellations that the proxy has yet to learn of."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("studies", sa.Column("opened", sa.LargeBinary))
    op.add_column("studies", sa.Column("cancel_due", sa.Boolean, nullable=False, server_default=sa.false()))
