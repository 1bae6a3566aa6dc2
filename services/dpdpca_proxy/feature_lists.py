"""Operations on lists of features: store one, read one, and remove those that no study names.

A list is stored before the manifest that names it. From then on it is kept as long as the manifest.
"""

from datetime import timedelta

from dpdpca_protocol.errors import LimitError, MessageError, NotFoundError, UnavailableError
from dpdpca_protocol.terms.feature_list import LEAST_LIST_BYTES, check_size
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.rotation import check_in_use
from dpdpca_proxy.store.feature_lists import (
    count_unnamed,
    delete_unnamed,
    insert_list,
    is_listed,
    unnamed_since,
)
from dpdpca_proxy.store.files import feature_list_name
from dpdpca_proxy.store.parties import PartyRow

MOST_UNNAMED = 8
"""The most lists of one data user that no study names. A chain of studies names one list after the other."""
KEPT_UNNAMED = timedelta(days=1)
"""How long such a list is kept."""


def put_list(proxy: Proxy, caller: PartyRow, digest: Digest, untrusted: bytes) -> None:
    """Stores a list of features. Repeating it changes nothing.

    The list is parsed when a manifest names it.

    Raises:
        MessageError: `feature-list-differs`, the bytes have another digest.
        LimitError: `too-large`; `too-many-feature-lists`, no study names the caller's earlier lists.
        UnavailableError: `busy`, the list was removed at the same time.
    """
    check_size(len(untrusted))
    if len(untrusted) < LEAST_LIST_BYTES or Digest.of(untrusted) != digest:
        raise MessageError(
            "feature-list-differs",
            "the digest in the address is not that of the list",
            "send the list to the address with its SHA-256",
        )
    check_in_use(caller)
    with proxy.database.reading("is the list there") as connection:
        if is_listed(connection, digest):
            return
        _check_quota(count_unnamed(connection, caller.party))
    name = feature_list_name(digest)
    proxy.files.write(name, untrusted)
    with proxy.database.transaction("take feature list") as connection:
        if is_listed(connection, digest):
            return
        _check_quota(count_unnamed(connection, caller.party))
        if not proxy.files.exists(name):
            raise UnavailableError(
                "busy", "the list was removed at the same time", "send it again", retry_after_seconds=1
            )
        insert_list(connection, digest, caller.party, len(untrusted), proxy.now())


def list_bytes(proxy: Proxy, digest: Digest) -> bytes:
    """A stored list. Raises NotFoundError `feature-list-missing`."""
    if (content := proxy.feature_lists(digest)) is None:
        raise missing_list(digest)
    return content


def missing_list(digest: Digest) -> NotFoundError:
    return NotFoundError(
        "feature-list-missing",
        f"the proxy has no list of features {digest.hex()}",
        "send the list before the manifest that names it",
    )


def remove_unnamed(proxy: Proxy) -> None:
    """Removes lists that no study has named for a day."""
    with proxy.database.reading("list unnamed lists") as connection:
        old = unnamed_since(connection, proxy.now() - KEPT_UNNAMED)
    for digest in old:
        # The file goes within the transaction, so that nobody stores the same list in between.
        with proxy.database.transaction("remove feature list") as connection:
            if delete_unnamed(connection, digest):
                proxy.files.remove(feature_list_name(digest))


def _check_quota(unnamed: int) -> None:
    if unnamed >= MOST_UNNAMED:
        raise LimitError(
            "too-many-feature-lists",
            f"no study names {unnamed} lists of features that this data user has sent",
            f"send their manifests, or wait: after {KEPT_UNNAMED.days} day the proxy removes such lists",
        )
