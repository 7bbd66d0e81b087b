"""Signatures as gpg makes them with options of a repository's owner."""

from __future__ import annotations

import pytest

from gpuprov.errors import Refused
from gpuprov.lab.mirror.key import signing_key
from gpuprov.untrusted.signature import verify_detached, verify_inline

TEXT = b"Suite: stable\n"


def test_a_signature_that_names_its_signer_is_valid() -> None:
    """Accept a signature with the signer's user ID: gpgv then prints NEWSIG with this ID as its only word."""
    with signing_key(["--sender", "lab@invalid"]) as key:
        assert verify_inline(key.clear_signed(TEXT), key.binary(), "InRelease") == TEXT
        verify_detached(TEXT, key.detached(TEXT), key.binary(), "Release")
        with pytest.raises(Refused, match=r"Release is not the file that key [0-9A-F]{16} signed"):
            verify_detached(TEXT + b"x", key.detached(TEXT), key.binary(), "Release")
