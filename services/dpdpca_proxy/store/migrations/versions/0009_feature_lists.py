"""Lists of features that manifests name by their digests.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

from dpdpca_runtime.engine import WHOLE_NUMBER, words

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "feature_lists",
        sa.Column("digest", words(64), primary_key=True),
        sa.Column("party", words(64), nullable=False),
        sa.Column("bytes", WHOLE_NUMBER, nullable=False),
        sa.Column("stored_at", words(20), nullable=False),
        sa.Column("study", words(64)),
        sa.ForeignKeyConstraint(["party"], ["parties.party"]),
        sa.ForeignKeyConstraint(["study"], ["studies.study"]),
    )
