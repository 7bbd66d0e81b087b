"""Signatures as gpg makes them with options of a repository's owner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuprov.errors import Refused
from gpuprov.untrusted import signature
from gpuprov.untrusted.openpgp import fingerprints
from gpuprov.untrusted.signature import verify_detached, verify_inline
from gpuprov_lab.mirror.key import signing_key
from tests.unit.untrusted.forged_signatures import BLANKS, LINE_ENDS, forged_signature, stating_good

TEXT = b"Suite: stable\n"


def test_a_binary_message_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse a compressed message before gpgv writes its content, whose size nothing limits."""
    with signing_key() as key:
        packed = key._gpg(["--compress-algo", "bzip2", "--sign", "--output", "-"], bytes(20_000_000))
        assert len(packed) < 10_000
        monkeypatch.setattr(signature, "_judge", None)
        with pytest.raises(Refused, match="InRelease is not signed"):
            verify_inline(packed, key.binary(), "InRelease")


def test_what_gpgv_writes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "OUTPUT_BYTES", 1 << 20)
    with signing_key() as key:
        large = b"x" * 99 + b"\n"
        assert verify_inline(key.clear_signed(large * 100), key.binary(), "InRelease") == large * 100
        with pytest.raises(Refused):
            verify_inline(key.clear_signed(large * 20_000), key.binary(), "InRelease")


def test_a_gpgv_that_does_not_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with signing_key() as key:
        signed, keyring = key.clear_signed(TEXT), key.binary()
    gpgv = tmp_path / "gpgv"
    gpgv.write_text("#!/bin/sh\nexec sleep 60\n")
    gpgv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(signature, "GPGV_S", 0.1)
    with pytest.raises(Refused, match=r"gpgv did not end within 0\.1 s"):
        verify_inline(signed, keyring, "InRelease")


def test_a_signature_that_names_its_signer_is_valid() -> None:
    """Accept a signature with the signer's user ID: gpgv then prints NEWSIG with this ID as its only word."""
    with signing_key(["--sender", "lab@invalid"]) as key:
        assert verify_inline(key.clear_signed(TEXT), key.binary(), "InRelease") == TEXT
        verify_detached(TEXT, key.detached(TEXT), key.binary(), "Release")
        with pytest.raises(Refused, match=r"Release is not the file that key [0-9A-F]{16} signed"):
            verify_detached(TEXT + b"x", key.detached(TEXT), key.binary(), "Release")


def test_a_bad_signature_cannot_state_that_it_is_good() -> None:
    """gpgv prints the text that a signature states of its signer; only ASCII blanks are escaped in it."""
    with signing_key() as key:
        [fingerprint] = fingerprints(key.binary())
        for stated in ("x", *map(stating_good, [fingerprint] * 99, BLANKS, LINE_ENDS)):
            forged = forged_signature(key.binary(), stated)
            with pytest.raises(Refused, match=r"is not the file that key [0-9A-F]{16} signed"):
                verify_detached(TEXT, forged, key.binary(), "Release")


def test_a_bad_signature_is_not_made_up_for_by_a_good_one() -> None:
    with signing_key() as key:
        good = key._gpg(["--detach-sign", "--output", "-"], TEXT)
        verify_detached(TEXT, good, key.binary(), "Release")
        for both in (good + forged_signature(key.binary(), "x"), forged_signature(key.binary(), "x") + good):
            with pytest.raises(Refused, match="is not the file that key"):
                verify_detached(TEXT, both, key.binary(), "Release")


@pytest.mark.parametrize("status", [b"", b"[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG 1 x\n"])
def test_without_the_fingerprint_of_a_key_of_the_keyring_nothing_is_valid(status: bytes) -> None:
    valid = b"[GNUPG:] VALIDSIG A 2026-01-31 1 0 4 0 1 8 00 "
    for by, passes in ((b"AA", True), (b"AB", False), (b"", False)):
        verdicts = signature._verdicts(status + valid + by + b"\n", "keys", ["AA"])
        assert any(not verdict.trouble for verdict in verdicts) is (passes and bool(status))
