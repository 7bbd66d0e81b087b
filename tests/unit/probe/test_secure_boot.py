"""Certificates in the variables of firmware and shim, and their use by drift and verify."""

from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest

from gpuprov.drift.judge import judge
from gpuprov.model.secure_boot import LockedSecureBoot
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import secure_boot
from gpuprov.roles.hardware import ENROLLED
from gpuprov.roles.hardware import secure_boot as expectations
from gpuprov.roles.nvidia_driver import expectations as of_driver
from gpuprov.verify.observers.secure_boot import SecureBoot
from tests.unit.verify.nodes_on_paper import KERNEL, locked_group

OWNER = bytes(16)
SITE, DISTRIBUTION, REVOKED = (b"\x30\x82" + struct.pack(">H", 700) + bytes([each]) * 700 for each in b"sdr")
HASHES = bytes.fromhex("2616c4c14c509240aca941f936934328")  # EFI_CERT_SHA256_GUID


def signature_list(kind: bytes, *values: bytes) -> bytes:
    """Return a list of signatures in the format of UEFI."""
    each = 16 + len(values[0])
    head = struct.pack("<III", 28 + each * len(values), 0, each)
    return kind + head + b"".join(OWNER + value for value in values)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine's folder, with empty folders of firmware variables and of shim's lists."""
    monkeypatch.setattr(secure_boot, "VARIABLES", f"{tmp_path}/efivars/")
    monkeypatch.setattr(secure_boot, "WHOLE", f"{tmp_path}/mok/")
    (tmp_path / "efivars").mkdir()
    (tmp_path / "mok").mkdir()
    return tmp_path


def asked() -> dict[str, Any]:
    """Return the answer of the collector `secure_boot`."""
    values: dict[str, Any] = secure_boot.secure_boot({})
    return values


def test_certificates_are_told_by_their_fingerprints(machine: Path) -> None:
    """Check the fingerprints of the certificates in the firmware's and shim's lists."""
    lists = signature_list(HASHES, bytes(32), bytes(32)) + signature_list(secure_boot.X509, DISTRIBUTION)
    (machine / "efivars/db-d719").write_bytes(b"\7\0\0\0" + lists)
    (machine / "mok/MokListRT").write_bytes(signature_list(secure_boot.X509, SITE))
    found = asked()["certificates"]
    assert found == {
        "db": [fingerprint(DISTRIBUTION)],
        "dbx": [],
        "MokListRT": [fingerprint(SITE)],
        "MokListXRT": [],
    }


def test_a_list_that_is_cut_short_ends_there(machine: Path) -> None:
    whole = signature_list(secure_boot.X509, SITE)
    for end in (0, 20, 27, 28, len(whole) - 1):
        (machine / "mok/MokListRT").write_bytes(whole[:end])
        assert asked()["certificates"]["MokListRT"] == []
    (machine / "mok/MokListRT").write_bytes(whole + bytes(28))
    assert asked()["certificates"]["MokListRT"] == [fingerprint(SITE)]


def group() -> Any:
    """Return a group that expects the site's certificate."""
    stated = LockedSecureBoot(fingerprint=fingerprint(SITE), signer="Site", serial="1F:2E")
    return locked_group("node").model_copy(update={"secure_boot": stated})


def facts(*, on: bool | None = True, **result: Any) -> Facts:
    """Return facts of Secure Boot in which the site's certificate is in shim's list, with changes."""
    lists = {"db": [], "dbx": [], "MokListRT": [fingerprint(SITE)], "MokListXRT": []}
    raw = {"lockdown": "integrity", "keys": None, "enforced": False, "ignored_by_shim": False}
    raw |= {"kernel": [], "vendor": "", "certificates": lists | result.pop("certificates", {})} | result
    state = {"secure_boot": on, "reboot_required": False, "reboot_packages": [], "cloud_init": ""}
    state |= {"foreign_drivers": [], "free_mib": {}, "device_nodes": [], "package_manager_busy": None}
    return Facts("node", "", 0.0, {"secure_boot": raw, "state": state})


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (facts(), None),
        (facts(lockdown=None, enforced=True), None),
        (facts(certificates={"MokListRT": [], "db": [fingerprint(SITE)]}), None),
        (facts(on=None), "no EFI"),
        (facts(on=False), "off"),
        (facts(certificates={"MokListRT": []}), "on, certificate not enrolled"),
        (facts(certificates={"MokListXRT": [fingerprint(SITE)]}), "on, certificate not enrolled"),
        (facts(lockdown="none"), "on, and not enforced, certificate enrolled"),
        (facts(ignored_by_shim=True), "on, and not enforced, certificate enrolled"),
    ],
)
def test_drift_names_the_state(seen: Facts, said: str | None) -> None:
    [expected] = expectations(group())
    assert (expected.expected, expected.role) == (ENROLLED, None)
    found = judge("node", seen, [expected]).drift
    assert [each.actual for each in found] == ([said] if said else [])


def test_what_the_distribution_signs_needs_no_certificate_of_ours() -> None:
    stated = group()
    driver = stated.components.driver.model_copy(update={"module_package": "linux-modules-nvidia-580"})
    precompiled = stated.model_copy(
        update={"components": stated.components.model_copy(update={"driver": driver})}
    )
    [expected] = expectations(precompiled)
    assert expected.expected == "on"
    assert not judge("node", facts(certificates={"MokListRT": []}), [expected]).drift
    assert "module.signature" not in {each.check for each in of_driver(precompiled)}
    assert not expectations(locked_group("node"))


MODINFO = "filename: /lib/modules/{kernel}/updates/dkms/{name}.ko\nversion: 535\n{signature}\n"
OURS, DKMS = "signer: Site\nsig_key: 1F:2E", "signer: DKMS module signing key\nsig_key: 77:01"


@pytest.mark.parametrize(
    ("signatures", "said"),
    [
        ((OURS, OURS), None),
        ((OURS, ""), f"unsigned for kernel {KERNEL}"),
        ((DKMS, OURS), f"DKMS module signing key 77:01 for kernel {KERNEL}"),
        ((), "nothing"),
    ],
)
def test_drift_names_whose_signature_a_module_has(signatures: tuple[str, ...], said: str | None) -> None:
    names = ("nvidia-current", "nvidia-current-uvm")
    text = "".join(
        MODINFO.format(kernel=KERNEL, name=name, signature=signature)
        for name, signature in zip(names, signatures, strict=False)
    )
    text += MODINFO.format(kernel=KERNEL, name="gdrdrv", signature="")
    seen = Facts("node", "", 0.0, {"disk_modules": {KERNEL: text}, "system": {}, "kernels": {}})
    expected = next(each for each in of_driver(group()) if each.check == "module.signature")
    found = judge("node", seen, [expected]).drift
    assert [each.actual or "nothing" for each in found] == ([said] if said else [])


def test_verify_finds_a_certificate_whatever_is_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SecureBoot.__new__(SecureBoot)
    lists = b"\x30\x82\x00" + signature_list(secure_boot.X509, DISTRIBUTION, SITE)
    monkeypatch.setattr(SecureBoot, "ask", lambda self, command: base64.b64encode(lists).decode())
    assert module.knows(fingerprint(SITE))
    assert not module.knows(fingerprint(REVOKED))
