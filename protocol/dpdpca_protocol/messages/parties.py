"""The statement in which a party has signed its keys: its enrolment, or the rotation that led to its keys."""

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.messages.rotation import KIND, verify_rotation
from dpdpca_protocol.messages.study_messages import Enrolment
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.signing import Identity, verify_statement


def signed_keys(untrusted: bytes, ed25519: bytes) -> Identity:
    """The keys of the party with this raw Ed25519 key, which has signed them all with it.

    Args:
        untrusted: the party's statement, as a proxy shows it.
        ed25519: the key.

    Raises:
        MessageError: this is neither an enrolment nor a rotation.
        AuthenticationError: the signature does not hold, or the statement is about another key.
        CryptographicError: nothing can be sealed to its `kem`.
    """
    if parse_canonical(untrusted).get("kind") == KIND:
        identity = verify_rotation(untrusted)[0].identity
    else:
        identity = Enrolment.parse(verify_statement("enrolment", untrusted)).identity
    if identity.ed25519 != ed25519:
        raise AuthenticationError(
            "bad-signature",
            "the proxy shows the statement of another party",
            "do not continue; tell the proxy's operator",
        )
    return identity
