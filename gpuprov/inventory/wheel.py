"""gpuprov's wheel with its hash, which first boots and jobs install.

gpuprov is never installed from a package index, where any user could register its name. The wheel contains
the hashes of all dependencies (`requirements.lock`), so that one hash pins all of them.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuprov.errors import InvalidInput
from gpuprov.inventory.firstboot.node.first_boot import PIP_LIMITS, RELEASE_LOCK
from gpuprov.untrusted.urls import public_url

HASH = "#sha256="
EXPECTED = f"https://…/gpuprov-VERSION-py3-none-any.whl{HASH}HASH"
MAKE = "scripts/release wheel dist"
"""Command that builds the wheel in a checkout and prints its hash as `--wheel` expects it."""
LARGEST = 64 << 20
_NAME = re.compile(r"gpuprov-[0-9A-Za-z.+!_]{1,60}-py3-none-any\.whl")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+/[A-Za-z0-9._~/%+-]*")


@dataclass(frozen=True)
class Wheel:
    """A wheel of gpuprov.

    Attributes:
        place: its URL, or its path in the repository of a job.
        sha256: hash of the file, in hexadecimal.
    """

    place: str
    sha256: str

    @property
    def name(self) -> str:
        """The file name."""
        return urlsplit(self.place).path.rpartition("/")[2]

    @property
    def fetched(self) -> bool:
        """Whether the place is a URL, with `://`, instead of a path."""
        return "://" in self.place


def wheel_by_url(stated: str | None) -> Wheel:
    """Return the wheel that `--wheel` names.

    Args:
        stated: URL#sha256=HASH; the URL may have a query, such as a signature.

    Raises:
        InvalidInput: nothing is stated, or not such a URL; for a local file the message contains its hash.
    """
    if stated is None:
        raise InvalidInput(
            "no wheel of gpuprov is named; it is not looked up in a package index",
            expected=f"--wheel {EXPECTED}",
            do=f"`{MAKE}` in a checkout of gpuprov (or `pip wheel --no-deps .` and sha256sum), "
            "put the wheel where it can be fetched, and give --wheel",
        )
    place, _, sha256 = stated.rpartition(HASH)
    wheel = Wheel(place, sha256)
    if _scheme(place) in ("http", "https") and _SHA256.fullmatch(sha256) and _NAME.fullmatch(wheel.name):
        return wheel
    path = Path(stated)
    if path.is_file() and _NAME.fullmatch(path.name):
        do = f"put it where it can be fetched, and give --wheel URL/{path.name}{HASH}{_digest(path)}"
        raise InvalidInput(f"--wheel {stated} is a file", expected=EXPECTED, do=do)
    seen = public_url(place or stated) if "://" in stated else stated
    raise InvalidInput(f"--wheel {seen}", expected=EXPECTED, do="see `sha256sum NAME.whl`")


def _scheme(url: str) -> str:
    """Return the scheme of a URL; empty if it is not one, such as with half of an IPv6 address."""
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def wheel_of_job(stated: str | None, folder: Path) -> Wheel:
    """Return the wheel of a job: by URL, or a file of the repository that the job checks out.

    Args:
        stated: URL#sha256=HASH, or a path.
        folder: the repository.

    Raises:
        InvalidInput: nothing is stated, the URL has a password or signature, which would be committed with
            the job, or the file is not in the repository.
    """
    if stated is None or "://" in stated:
        wheel = wheel_by_url(stated)
        if not _PLAIN_URL.fullmatch(wheel.place):
            raise InvalidInput(
                f"--wheel {public_url(wheel.place)}",
                expected="a URL without password and query, because the job is a file of a repository",
                do="add the wheel to the repository and give its path, or give a URL that needs neither",
            )
        return wheel
    path = Path(stated).absolute()
    if not path.is_file() or not _NAME.fullmatch(path.name):
        raise InvalidInput(
            f"--wheel {stated}", expected=f"a file gpuprov-VERSION-py3-none-any.whl, or {EXPECTED}"
        )
    try:
        inside = path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise InvalidInput(
            f"{path} is not in {folder}", do=f"copy it there: the job checks out {folder}"
        ) from None
    return Wheel(inside, _digest(path))


def install_lines(wheel: Wheel, lock: str = "gpuprov-install.lock") -> list[str]:
    """Return lines of sh that install a wheel and its dependencies by hash, only as wheels.

    A wheel by URL is first downloaded into the current folder.

    Args:
        lock: the requirements file for pip that the hashes are written to.
    """
    path, lines = wheel.place, []
    if wheel.fetched:
        path = wheel.name
        lines.append(
            "curl --fail --silent --show-error --location --proto =http,https --proto-redir =https"
            f" --max-time 300 --max-filesize {LARGEST} --output {path} {shlex.quote(wheel.place)}"
        )
    quoted = shlex.quote(path)
    read = f"import sys, zipfile; print(zipfile.ZipFile(sys.argv[1]).read('{RELEASE_LOCK}').decode())"
    return [
        *lines,
        f"echo {shlex.quote(f'{wheel.sha256}  {path}')} | sha256sum --check --quiet",
        f'python -I -c "{read}" {quoted} >{lock}',
        f"echo {shlex.quote(f'./{path} --hash=sha256:{wheel.sha256}')} >>{lock}",
        f"({PIP_LIMITS} pip install --require-hashes --only-binary :all: --requirement {lock})",
    ]


def _digest(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal; OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
