"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "nonces",
        sa.Column("party", sa.String(64), nullable=False),
        sa.Column("nonce", sa.String(length=32), nullable=False),
        sa.Column("seen_at", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("party", "nonce", name="nonce_used_once"),
    )
    op.create_index("nonces_by_age", "nonces", ["seen_at"], unique=False)
    op.create_table(
        "parties",
        sa.Column("party", sa.String(64), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("ed25519", sa.LargeBinary(length=32), nullable=False),
        sa.Column("x25519", sa.LargeBinary(length=32), nullable=False),
        sa.Column("enrolment", sa.LargeBinary(), nullable=False),
        sa.Column("enrolled_at", sa.String(20), nullable=False),
        sa.CheckConstraint("role IN ('owner', 'user')", name="role_is_owner_or_user"),
        sa.PrimaryKeyConstraint("party"),
    )
    op.create_table(
        "invitations",
        sa.Column("token_digest", sa.String(64), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.Column("expires_at", sa.String(20), nullable=False),
        sa.Column("used_at", sa.String(20), nullable=True),
        sa.Column("used_by", sa.String(64), nullable=True),
        sa.CheckConstraint("role IN ('owner', 'user')", name="role_is_owner_or_user"),
        sa.ForeignKeyConstraint(
            ["used_by"],
            ["parties.party"],
        ),
        sa.PrimaryKeyConstraint("token_digest"),
    )
    op.create_table(
        "studies",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("modulus_digest", sa.String(64), nullable=False),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("release_kind", sa.String(length=8), nullable=False),
        sa.Column("closing", sa.String(length=16), nullable=False),
        sa.Column("closes_at", sa.String(20), nullable=False),
        sa.Column("epsilon", sa.String(length=64), nullable=False),
        sa.Column("delta", sa.String(length=64), nullable=False),
        sa.Column("share_bytes", sa.Integer(), nullable=False),
        sa.Column("min_owners", sa.Integer(), nullable=False),
        sa.Column("max_owners", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(20), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("closed_at", sa.String(20), nullable=True),
        sa.Column("cohort_digest", sa.String(64), nullable=True),
        sa.Column("noise_drawn_at", sa.String(20), nullable=True),
        sa.Column("challenge", sa.LargeBinary(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("records", sa.Integer(), nullable=True),
        sa.Column("release", sa.LargeBinary(), nullable=True),
        sa.Column("release_folder", sa.String(length=32), nullable=True),
        sa.Column("released_at", sa.String(20), nullable=True),
        sa.Column("failure", sa.String(length=64), nullable=True),
        sa.Column("failure_detail", sa.String(length=400), nullable=True),
        sa.ForeignKeyConstraint(
            ["user"],
            ["parties.party"],
        ),
        sa.PrimaryKeyConstraint("study"),
        sa.UniqueConstraint("modulus_digest", name="one_modulus_one_study"),
    )
    op.create_index("studies_by_state", "studies", ["state"], unique=False)
    op.create_table(
        "aggregate_chunks",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "position", name="one_place_one_product"),
    )
    op.create_table(
        "chunks",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner"],
            ["parties.party"],
        ),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "owner", "version", "position", name="one_place_one_chunk"),
    )
    op.create_table(
        "cohort",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("statement_digest", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner"],
            ["parties.party"],
        ),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "owner", name="owner_counts_once"),
    )
    op.create_table(
        "components",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "data_keys",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "draws",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=False),
        sa.Column("drawn_at", sa.String(20), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "events",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("time", sa.String(20), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "position", name="one_chain_one_study"),
    )
    op.create_table(
        "participants",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "owner", name="participant_named_once"),
    )
    op.create_table(
        "release_chunks",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "position", name="one_place_one_release_chunk"),
    )
    op.create_table(
        "shares",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("signed_version", sa.Integer(), nullable=False),
        sa.Column("upload_version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner"],
            ["parties.party"],
        ),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "owner", name="one_share_one_owner"),
    )
    op.create_table(
        "statements",
        sa.Column("study", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("subject", sa.String(length=10), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=False),
        sa.Column("receipt", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner"],
            ["parties.party"],
        ),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "owner", "version", name="one_version_one_statement"),
    )
