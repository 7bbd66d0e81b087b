"""What the role packages makes of apt's own words: one cause each, the right one first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

VARIABLES = Path(__file__).parents[3] / "roles/packages/vars/main.yml"
FAILURES = yaml.safe_load(VARIABLES.read_text(encoding="utf-8"))["__packages_failures"]
MIRROR = "http://mirror/compute/cuda/repos/ubuntu2404/x86_64"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "Version '580.1-1' for 'nvidia-open' was not found",
            "the package repository does not have what the lock names",
        ),
        (
            "Unable to locate package nvidia-driver-pinning-580.95.05",
            "the package repository does not have what the lock names",
        ),
        (
            "Unable to locate package linux-headers-6.1.0-99-amd64",
            "the package repository has no headers of the target kernel",
        ),
        (
            f"Failed to fetch {MIRROR}/nvidia-open_580.deb  404  Not Found [IP: 198.18.0.1 8080]",
            "the package repository does not have what the lock names",
        ),
        (
            f"Failed to fetch {MIRROR}/./InRelease  Could not connect to mirror:80 (198.18.0.1). - connect "
            "(111: Connection refused)",
            "the package repository does not answer as it should",
        ),
        (
            f"GPG error: {MIRROR}  InRelease: The following signatures couldn't be verified because the "
            f"public key is not available: NO_PUBKEY A4B469963BF863CC The repository '{MIRROR}  InRelease' "
            "is not signed.",
            "the signature of the package repository does not hold",
        ),
        (
            f"An error occurred during the signature verification. {MIRROR}  InRelease: The following "
            "signatures were invalid: EXPKEYSIG 21B5EB7239F73EEE Failed to fetch",
            "the signature of the package repository does not hold",
        ),
        (
            f"Conflicting values set for option Signed-By regarding source {MIRROR}/ /: /a != /b",
            "another file on the node names the same repository with another key",
        ),
        (
            f"Failed to fetch {MIRROR}/./Packages.gz  File has unexpected size (1 != 2).",
            "the package repository is half synced or stale",
        ),
        (
            "fetching took longer than 600 s",
            "the package repository is too slow",
        ),
        (
            "Packages were downgraded and -y was used without --allow-downgrades.",
            "that would downgrade packages",
        ),
        (
            "Unable to correct problems, you have held broken packages.",
            "the packages do not fit together with others that are installed or held",
        ),
        (
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (apt-get)",
            "another apt or dpkg did not finish in time",
        ),
    ],
)
def test_the_first_cause_that_fits(said: str, cause: str) -> None:
    fitting = [failure for failure in FAILURES if re.search(failure["match"], said)]
    assert fitting[0]["says"] == cause
    assert fitting[0]["do"]
