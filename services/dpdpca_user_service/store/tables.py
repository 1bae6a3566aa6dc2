"""The database schema.

Columns above the line are written once, when a study is drafted; those below change later.
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from dpdpca_runtime.engine import WHOLE_NUMBER, words
from dpdpca_user_service.stages import Stage

metadata = MetaData()

_STAGES = ", ".join(f"'{stage}'" for stage in Stage)

studies = Table(
    "studies",
    metadata,
    Column("id", words(32), primary_key=True),  # of the draft; random
    Column("created_at", words(20), nullable=False),
    Column("title", words(200), nullable=False),
    Column("release", words(8), nullable=False),
    Column("draft", LargeBinary, nullable=False),  # as it came
    Column("media_type", words(40), nullable=False),
    Column("proxy_url", words(600), nullable=False),
    # ---
    Column("stage", words(12), nullable=False),
    Column("updated_at", words(20), nullable=False),
    Column("publish", Boolean, nullable=False),
    Column("in_clear", Boolean, nullable=False, default=False),  # components may be published in clear
    Column("study", words(64)),
    Column("manifest", LargeBinary),  # statement, signed by us
    Column("secret", LargeBinary),  # p and q, sealed; gone once there is a model
    Column("challenge", LargeBinary),  # statement, signed by the proxy
    Column("answer", LargeBinary),  # statement, signed by us: the only one there will ever be
    Column("bundle", LargeBinary),  # release, share statements and transcript
    Column("opened", LargeBinary),  # statement, signed by us before anything is opened: the only one
    Column("model", LargeBinary),  # .npz; of a pre-study its numbers in JSON
    Column("published", LargeBinary),  # components statement, signed by us
    Column("cancel_due", Boolean, nullable=False, default=False),  # `cancel` has yet to be signed and sent
    Column("facts", Text, nullable=False, default="{}"),  # the proxy's last answer; for information only
    Column("seconds", Text, nullable=False, default="{}"),
    Column("problem_slug", words(60)),
    Column("problem", words(1000)),
    CheckConstraint(f"stage IN ({_STAGES})", name="stage_is_known"),
    UniqueConstraint("study", name="one_row_a_study"),
)

chains = Table(
    "chains",
    metadata,
    Column("id", words(32), primary_key=True),  # of base draft and options
    Column("created_at", words(20), nullable=False),
    Column("title", words(200), nullable=False),
    Column("base", LargeBinary, nullable=False),  # JSON
    Column("proxy_url", words(600), nullable=False),
    Column("publish", Boolean, nullable=False),
    Column("in_clear", Boolean, nullable=False),
    Column("records", WHOLE_NUMBER, nullable=False),
    Column("scales", Boolean, nullable=False),
    # ---
    Column("updated_at", words(20), nullable=False),
    Column("state", words(12), nullable=False),
    Column("rounds", Text, nullable=False),  # JSON, oldest first; only appended to
    Column("problem_slug", words(60)),
    Column("problem", words(1000)),
    CheckConstraint("state IN ('running', 'done', 'cancelled', 'failed')", name="chain_state_is_known"),
)

log = Table(
    "log",
    metadata,
    Column("position", WHOLE_NUMBER, primary_key=True, autoincrement=False),  # from 1
    Column("previous", words(64), nullable=False),
    Column("time", words(20), nullable=False),
    Column("kind", words(40), nullable=False),
    Column("subject", words(64), nullable=False),
    Column("digest", words(64), nullable=False),
    UniqueConstraint("previous", name="one_chain"),
)

chunks = Table(
    "release_chunks",
    metadata,
    Column("id", words(32), ForeignKey("studies.id"), primary_key=True),
    Column("position", WHOLE_NUMBER, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
