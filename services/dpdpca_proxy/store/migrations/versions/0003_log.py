"""The proxy's log, leases, contradictions, the features of studies, and up to when nonces were deleted.

Revision ID: 0003
Revises: 0002
"""

import json

import sqlalchemy as sa
from alembic import op

from dpdpca_protocol.terms.features import feature_key

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "log",
        sa.Column("position", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("time", sa.String(20), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("position"),
    )
    op.create_table(
        "leases",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(40), nullable=False),
        sa.Column("until", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.study"]),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "forgotten",
        sa.Column("only", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("before", sa.Integer(), nullable=False),
        sa.CheckConstraint('"only" = 1', name="one_memory"),
        sa.PrimaryKeyConstraint("only"),
    )
    op.create_table(
        "contradictions",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.String(20), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.study"]),
        sa.ForeignKeyConstraint(["owner"], ["parties.party"]),
        sa.PrimaryKeyConstraint("study", "owner", "version", "digest", name="one_contradiction_once"),
    )
    op.add_column("studies", sa.Column("cohort_distance", sa.Integer(), nullable=False, server_default="2"))
    features = op.create_table(
        "study_features",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.ForeignKeyConstraint(["study"], ["studies.study"]),
        sa.PrimaryKeyConstraint("study", "name", name="one_study_one_feature"),
    )
    op.create_index("studies_by_feature", "study_features", ["name"], unique=False)
    rows = op.get_bind().execute(sa.text("SELECT study, manifest FROM studies")).all()
    for study, manifest in rows:
        named = json.loads(manifest)["body"]["features"]
        keys = sorted({feature_key(feature["name"]) for feature in named})
        op.bulk_insert(features, [{"study": study, "name": key} for key in keys])
