"""Reads the terms to be audited from a file: a draft or a signed manifest."""

import json
from pathlib import Path

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_runtime.text import load_text
from dpdpca_user.commands.parts import lint_draft, read_draft

MOST_BYTES = 64 * 2**20


def read_terms(path: Path, *, key_rules: KeyRules = PRODUCT_KEYS) -> Manifest:
    """The manifest in a signed statement, or the one that a draft would become.

    Args:
        path: the file; its content is untrusted.
        key_rules: which moduli are accepted.

    Raises:
        MessageError, PolicyError, AuthenticationError, CryptographicError: the reason for which every party
            would refuse it.
        InputError: the file is larger than any manifest.
    """
    if path.stat().st_size > MOST_BYTES:
        raise InputError(
            "too-large", f"{path.name} is larger than any manifest", "give a draft or a manifest"
        )
    text = load_text(path, MOST_BYTES)
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if isinstance(members, dict) and {"body", "signature"} <= members.keys():
        return open_manifest(text.strip().encode(), key_rules=key_rules).manifest
    return lint_draft(read_draft(path))
