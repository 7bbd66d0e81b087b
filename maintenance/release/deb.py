"""`gpuprov.deb`: `gpuprov.pyz` with a command and a manual page, for `apt install ./gpuprov.deb`.

Debian 12 has older versions of ansible-core and pydantic than gpuprov needs. Therefore the package does not
depend on Debian's packages of them, and contains the file that brings its own.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

from gpuprov.errors import GpuprovError, InvalidInput
from maintenance.manual import manual
from maintenance.release.locked import pythons
from maintenance.release.onefile import WHEELS

NAME = "gpuprov.deb"
PACKAGE = "gpuprov"
ARCHIVE = "usr/share/gpuprov/gpuprov.pyz"
MAINTAINER = re.compile(r"[^<>\n]+ <[^<>@\s]+@[^<>@\s]+>")
COMMAND = f"""\
#!/bin/sh
exec python3 /{ARCHIVE} "$@"
"""
CONTROL = """\
Package: {package}
Version: {version}
Architecture: all
Maintainer: {maintainer}
Installed-Size: {size}
Depends: python3 (>= {python}), gpgv, openssh-client
Section: admin
Priority: optional
Description: prepares GPU servers and keeps them in a declared state
 gpuprov installs the NVIDIA driver, CUDA, container engines and settings on
 servers over SSH, at the exact versions of a lock file, verifies them with
 independent tests, and reports what differs later.
 .
 At its first start each user's gpuprov fetches its compiled dependencies by
 hash, from the index that pip is configured to use.
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpuprov

Files: *
Copyright: {year} the authors of gpuprov
License: GPL-3.0+
Comment:
 {archive} also contains these wheels, unchanged, each with its own licence
 in its folder *.dist-info:
{wheels}

License: GPL-3.0+
 This program is free software: you can redistribute it and/or modify it
 under the terms of the GNU General Public License as published by the Free
 Software Foundation, either version 3 of the License, or (at your option)
 any later version.
 .
 On Debian systems, the full text of the GNU General Public License version 3
 is in /usr/share/common-licenses/GPL-3.
"""
CHANGELOG = """\
{package} ({version}) unstable; urgency=medium

  * Release {version}; CHANGELOG.md in the sources lists its changes.

 -- {maintainer}  {date}
"""


def build_deb(pyz: Path, target: Path, version: str, maintainer: str, scratch: Path, when: int) -> None:
    """Write the package; the same arguments and the same dpkg-deb result in the same bytes.

    Args:
        pyz: `gpuprov.pyz`.
        target: path of the package.
        maintainer: `NAME <ADDRESS>`, which Debian's format requires.
        scratch: an empty folder.
        when: date of the files inside, in seconds since 1970.

    Raises:
        InvalidInput: the maintainer has another format.
        GpuprovError: dpkg-deb is missing, or fails.
    """
    if not MAINTAINER.fullmatch(maintainer):
        raise InvalidInput(f"the maintainer is {maintainer!r}", expected="NAME <ADDRESS>")
    if shutil.which("dpkg-deb") is None:
        raise GpuprovError("dpkg-deb is not installed", do="apt install dpkg, or build on Debian or Ubuntu")
    root = scratch / "root"
    _write(root, pyz, version, maintainer, when)
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(when)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GpuprovError(f"dpkg-deb exited with {done.returncode}: {done.stderr.strip()}")


def _write(root: Path, pyz: Path, version: str, maintainer: str, when: int) -> None:
    """Write the package's files and its control file, all with the modes and the date that they get."""
    stated = {"package": PACKAGE, "version": version, "maintainer": maintainer}
    with zipfile.ZipFile(pyz) as whole:
        wheels = sorted(Path(each).name for each in whole.namelist() if each.startswith(f"{WHEELS}/"))
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(when))
    texts = {
        "usr/share/doc/gpuprov/copyright": COPYRIGHT.format(
            archive=f"/{ARCHIVE}",
            year=time.gmtime(when).tm_year,
            wheels="\n".join(f"  {each}" for each in wheels),
        ).encode(),
        "usr/share/doc/gpuprov/changelog.gz": _packed(CHANGELOG.format(**stated, date=date)),
        "usr/share/man/man1/gpuprov.1.gz": _packed(manual()),
        "usr/bin/gpuprov": COMMAND.encode(),
        ARCHIVE: pyz.read_bytes(),
    }
    size = -(-sum(map(len, texts.values())) // 1024)
    python = "{}.{}".format(*pythons()[0])
    sums = (
        f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}  {name}"
        for name, content in texts.items()
    )
    texts["DEBIAN/md5sums"] = "".join(f"{line}\n" for line in sums).encode()
    texts["DEBIAN/control"] = CONTROL.format(**stated, size=size, python=python).encode()
    for name, content in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if name.startswith("usr/bin/") else 0o644)
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (when, when))


def _packed(text: str) -> bytes:
    """Return text compressed by gzip, without a name and a time in it."""
    return gzip.compress(text.encode(), mtime=0)
