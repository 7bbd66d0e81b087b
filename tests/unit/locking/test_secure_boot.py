"""Secure Boot in a lock: recorded values and refusals."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from gpuprov.errors import InvalidInput, Refused
from gpuprov.locking.secure_boot import check_signed, locked_secure_boot
from gpuprov.model.fleet import parse_fleet
from gpuprov.model.secure_boot import KeyCommand, LockedSecureBoot
from gpuprov.signing.keys import signer
from tests import ROOT
from tests.unit.verify.nodes_on_paper import locked_group

FLEET = "groups: {a: {profile: p, hosts: h, os: debian12}}\n"
STATED = LockedSecureBoot(fingerprint="0" * 64, signer="Site", serial="01")


def test_the_lock_has_the_certificate_and_not_the_key(tmp_path: Path) -> None:
    words = (
        "openssl req -new -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=Site -keyout site.key -out site.pem"
    )
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
    stated = parse_fleet(f"{FLEET}secure_boot: {{certificate: site.pem, key: site.key}}\n", "x").secure_boot
    locked = locked_secure_boot(stated, tmp_path)
    assert locked is not None
    assert locked.signer == "Site"
    assert set(locked.model_dump()) == {"fingerprint", "signer", "serial"}
    (tmp_path / "site.key").unlink()
    assert locked_secure_boot(stated, tmp_path) == locked


def test_the_pair_that_the_page_makes_can_be_stated_and_signs(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/secure-boot.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^ {4}.*\n)+", page, re.MULTILINE)
    [typed] = [block for block in blocks if "openssl req -new" in block]
    [stated] = [block for block in blocks if block.lstrip().startswith("secure_boot:")]
    subprocess.run(["sh", "-ec", dedent(typed)], cwd=tmp_path, check=True, capture_output=True)
    secure_boot = parse_fleet(FLEET + dedent(stated), "x").secure_boot
    assert secure_boot is not None
    locked = locked_secure_boot(secure_boot, tmp_path)
    assert locked is not None
    assert locked.signer == "Example modules 2026"
    _, sign = signer(secure_boot, tmp_path)
    assert sign(b"module").endswith(b"~Module signature appended~\n")


def test_a_fleet_without_it_is_written_as_ever() -> None:
    assert "secure_boot" not in parse_fleet(FLEET, "x").model_dump()
    assert locked_secure_boot(None, Path("/nowhere")) is None


def test_where_the_key_is_does_not_count_for_the_lock() -> None:
    here, there = (
        parse_fleet(f"{FLEET}secure_boot: {{certificate: a.pem, key: {key}}}\n", "x")
        for key in ("a.key", "{command: sign}")
    )
    assert there.secure_boot
    assert there.secure_boot.key == KeyCommand(command="sign")
    without = {"secure_boot": {"key"}}
    assert here.model_dump_json(exclude=without) == there.model_dump_json(exclude=without)
    with pytest.raises(InvalidInput, match=r"x:2: unknown key 'commnd'"):
        parse_fleet(f"{FLEET}secure_boot: {{certificate: a.pem, key: {{commnd: sign}}}}\n", "x")


def test_modules_that_nobody_could_sign_are_refused() -> None:
    driver = locked_group("node").components.driver
    with pytest.raises(Refused, match="a: secure_boot is stated, and each node compiles its own module"):
        check_signed("a", STATED, driver)
    check_signed("a", None, driver)
    check_signed("a", STATED, driver.model_copy(update={"module_package": "linux-modules-nvidia-580"}))
