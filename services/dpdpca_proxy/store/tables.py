"""The database schema.

Constraints of the database enforce uniqueness and order; each is named after its rule. The columns of
`studies` and `shares` are in two groups: those fixed at insertion, and those changed by conditional writes.
The database has no plaintext of a share: chunks are files, sealed under the study's data key.
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
)

from dpdpca_protocol.wire.kem import KEM_KEY_BYTES
from dpdpca_proxy.store.columns import DigestColumn, PartyColumn, StudyColumn, TimeColumn
from dpdpca_runtime.engine import WHOLE_NUMBER, words

metadata = MetaData()

invitations = Table(
    "invitations",
    metadata,
    Column("token_digest", DigestColumn, primary_key=True),  # SHA-256 of the token, which is not stored
    Column("role", words(8), nullable=False),
    Column("name", words(200), nullable=False),
    Column("created_at", TimeColumn, nullable=False),
    Column("expires_at", TimeColumn, nullable=False),
    Column("used_at", TimeColumn),
    Column("used_by", PartyColumn, ForeignKey("parties.party")),
    CheckConstraint("role IN ('owner', 'user')", name="role_is_owner_or_user"),
)

parties = Table(
    "parties",
    metadata,
    Column("party", PartyColumn, primary_key=True),
    Column("role", words(8), nullable=False),
    Column("name", words(200), nullable=False),  # the operator's name for it, from the invitation
    Column("ed25519", LargeBinary(32), nullable=False),
    Column("kem", LargeBinary(KEM_KEY_BYTES)),  # NULL: a data user, or keys from an earlier version
    Column("enrolment", LargeBinary, nullable=False),  # the self-signed statement, or that of the rotation
    Column("enrolled_at", TimeColumn, nullable=False),
    CheckConstraint("role IN ('owner', 'user')", name="role_is_owner_or_user"),
)

rotations = Table(
    "rotations",
    metadata,
    Column("party", PartyColumn, ForeignKey("parties.party"), nullable=False),  # whose key was replaced
    Column("successor", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("version", WHOLE_NUMBER, nullable=False),
    Column("statement", LargeBinary, nullable=False),  # signed by both keys
    PrimaryKeyConstraint("party", name="one_key_one_successor"),
    UniqueConstraint("successor", name="one_key_one_predecessor"),
)

nonces = Table(
    "nonces",
    metadata,
    Column("party", PartyColumn, nullable=False),
    Column("nonce", words(32), nullable=False),
    Column("seen_at", WHOLE_NUMBER, nullable=False),  # seconds since 1970
    PrimaryKeyConstraint("party", "nonce", name="nonce_used_once"),
    Index("nonces_by_age", "seen_at"),
)

studies = Table(
    "studies",
    metadata,
    Column("study", StudyColumn, primary_key=True),
    Column("user", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("manifest", LargeBinary, nullable=False),  # the signed statement, as received
    Column("modulus_digest", DigestColumn, nullable=False),
    Column("title", words(200), nullable=False),
    Column("release_kind", words(8), nullable=False),
    Column("closing", words(16), nullable=False),
    Column("closes_at", TimeColumn, nullable=False),
    Column("epsilon", words(64), nullable=False),
    Column("delta", words(64), nullable=False),
    Column("share_bytes", WHOLE_NUMBER, nullable=False),
    Column("min_owners", WHOLE_NUMBER, nullable=False),
    Column("max_owners", WHOLE_NUMBER, nullable=False),
    Column("cohort_distance", WHOLE_NUMBER, nullable=False),
    Column("created_at", TimeColumn, nullable=False),
    # changed by conditional writes
    Column("state", words(10), nullable=False),
    Column("revision", WHOLE_NUMBER, nullable=False),  # rises with every visible change
    Column("closed_at", TimeColumn),
    Column("cohort_digest", DigestColumn),
    Column("noise_drawn_at", TimeColumn),
    Column("challenge", LargeBinary),  # E[N] as a signed statement, committed before it is first served
    Column("answer", LargeBinary),
    Column("records", WHOLE_NUMBER),  # N, proved; masked releases only
    Column("release", LargeBinary),  # the signed statement of the finished release
    Column("release_folder", words(32)),
    Column("released_at", TimeColumn),
    Column("opened", LargeBinary),  # statement of the data user: which release it opens
    Column("cancel", LargeBinary),  # statement of the data user
    Column("failure", words(64)),
    Column("failure_detail", words(400)),
    UniqueConstraint("modulus_digest", name="one_modulus_one_study"),
    Index("studies_by_state", "state"),
)

participants = Table(
    "participants",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, nullable=False),
    PrimaryKeyConstraint("study", "owner", name="participant_named_once"),
)

shares = Table(
    "shares",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    # changed by conditional writes
    Column("state", words(10), nullable=False),
    Column(
        "signed_version", WHOLE_NUMBER, nullable=False
    ),  # of the last statement accepted; 0 before the first
    Column("upload_version", WHOLE_NUMBER),  # the version whose chunks are arriving
    PrimaryKeyConstraint("study", "owner", name="one_share_one_owner"),
)

statements = Table(
    "statements",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("version", WHOLE_NUMBER, nullable=False),
    Column("subject", words(10), nullable=False),  # share or withdrawal
    Column("digest", DigestColumn, nullable=False),
    Column("statement", LargeBinary, nullable=False),
    Column("receipt", LargeBinary, nullable=False),
    PrimaryKeyConstraint("study", "owner", "version", name="one_version_one_statement"),
)

declines = Table(
    "declines",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    # the owner's newest decline; replaced by a newer one, and removed when its share is complete
    Column("statement", LargeBinary, nullable=False),
    PrimaryKeyConstraint("study", "owner", name="one_owner_one_decline"),
)

chunks = Table(
    "chunks",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("version", WHOLE_NUMBER, nullable=False),
    Column("position", WHOLE_NUMBER, nullable=False),
    Column("digest", DigestColumn, nullable=False),
    Column("copy_mark", DigestColumn, nullable=False),  # keyed hash of the ciphertexts, without the salt
    PrimaryKeyConstraint("study", "owner", "version", "position", name="one_place_one_chunk"),
)

cohort = Table(
    "cohort",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("version", WHOLE_NUMBER, nullable=False),
    Column("statement_digest", DigestColumn, nullable=False),
    PrimaryKeyConstraint("study", "owner", name="owner_counts_once"),
)

aggregate_chunks = Table(
    "aggregate_chunks",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("position", WHOLE_NUMBER, nullable=False),
    Column("digest", DigestColumn, nullable=False),
    PrimaryKeyConstraint("study", "position", name="one_place_one_product"),
)

draws = Table(
    "draws",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), primary_key=True),  # one study, one noise
    Column(
        "token", words(32), nullable=False
    ),  # part of the file's name; not a digest, because noise can be guessed
    Column("drawn_at", TimeColumn, nullable=False),
)

data_keys = Table(
    "data_keys",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),  # to the proxy's own `kem`
)

release_chunks = Table(
    "release_chunks",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("position", WHOLE_NUMBER, nullable=False),
    Column("digest", DigestColumn, nullable=False),
    PrimaryKeyConstraint("study", "position", name="one_place_one_release_chunk"),
)

components = Table(
    "components",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), primary_key=True),  # published once
    Column("digest", DigestColumn, nullable=False),
    Column("statement", LargeBinary, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("position", WHOLE_NUMBER, nullable=False),
    Column("kind", words(16), nullable=False),
    Column("time", TimeColumn, nullable=False),
    Column("digest", DigestColumn, nullable=False),
    Column("statement", LargeBinary, nullable=False),
    PrimaryKeyConstraint("study", "position", name="one_chain_one_study"),
)

study_features = Table(
    "study_features",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("name", words(200), nullable=False),  # as names are compared
    PrimaryKeyConstraint("study", "name", name="one_study_one_feature"),
    Index("studies_by_feature", "name"),
)

feature_lists = Table(
    "feature_lists",
    metadata,
    Column("digest", DigestColumn, primary_key=True),
    Column("party", PartyColumn, ForeignKey("parties.party"), nullable=False),  # who has sent it first
    Column("bytes", WHOLE_NUMBER, nullable=False),
    Column("stored_at", TimeColumn, nullable=False),
    Column("study", StudyColumn, ForeignKey("studies.study")),  # the first that names it; NULL: none yet
)

contradictions = Table(
    "contradictions",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), nullable=False),
    Column("owner", PartyColumn, ForeignKey("parties.party"), nullable=False),
    Column("version", WHOLE_NUMBER, nullable=False),
    Column("digest", DigestColumn, nullable=False),
    Column("statement", LargeBinary, nullable=False),  # signed, refused, and kept as evidence
    Column("time", TimeColumn, nullable=False),
    PrimaryKeyConstraint("study", "owner", "version", "digest", name="one_contradiction_once"),
)

leases = Table(
    "leases",
    metadata,
    Column("study", StudyColumn, ForeignKey("studies.study"), primary_key=True),  # one study, one worker
    Column("holder", words(40), nullable=False),
    Column("until", WHOLE_NUMBER, nullable=False),  # seconds since 1970, by the database's clock; 0: free
    Column("number", WHOLE_NUMBER, nullable=False),  # rises whenever the study is taken
)

forgotten = Table(
    "forgotten",
    metadata,
    Column("only", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    Column("before", WHOLE_NUMBER, nullable=False),  # nonces seen before this second were deleted
    CheckConstraint('"only" = 1', name="one_memory"),
)

log = Table(
    "log",
    metadata,
    Column("position", WHOLE_NUMBER, primary_key=True, autoincrement=False),
    Column("previous", DigestColumn, nullable=False),
    Column("time", TimeColumn, nullable=False),
    Column("kind", words(16), nullable=False),
    Column("subject", DigestColumn, nullable=False),
    Column("digest", DigestColumn, nullable=False),
)
