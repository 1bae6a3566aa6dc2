"""Lists of features that a role keeps, each in a private file that its digest names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpdpca_protocol.terms.feature_list import FeatureListRef
from dpdpca_protocol.terms.signed_manifest import named_list
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_runtime.files import private_dir, read_private, write_private


class KeptLists:
    """The lists in a folder. A call gives the bytes of a list, or None, as parsers of manifests need it.

    A file that does not have the content of its name counts as missing, so that it is fetched again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, digest: Digest) -> bytes | None:
        """Raises PolicyError: `file-not-private`, others can access the file."""
        path = self.path(digest)
        if not path.exists():
            return None
        content = read_private(path)
        return content if Digest.of(content) == digest else None

    def path(self, digest: Digest) -> Path:
        """Where the list with this digest is, if it is kept."""
        return self._folder / f"{digest.hex()}.json"

    def keep(self, content: bytes) -> Digest:
        """Stores a list, and returns its digest."""
        digest = Digest.of(content)
        if self(digest) is None:
            private_dir(self._folder)
            write_private(self.path(digest), content)
        return digest

    def fetch(self, body: Mapping[str, Any], get: Callable[[FeatureListRef], bytes]) -> None:
        """Makes sure that the list that the body of a manifest names is kept.

        Args:
            body: parsed canonical JSON; untrusted.
            get: asks a peer, and checks what it answers (`ProxyClient.feature_list`).

        Raises:
            DpdpcaError: the errors of `get`, and of a malformed reference.
        """
        reference = named_list(body)
        if reference is not None and self(reference.sha256) is None:
            self.keep(get(reference))
