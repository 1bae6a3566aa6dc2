"""The progress of a key is not stored: the search for one has no memory."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.drop_column("studies", "key_progress")
