"""Archive of the collection; the same commit gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

from gpuprov.errors import InvalidInput
from tests import ROOT


def build(folder: Path, repository: str | None = None) -> Path:
    """Build the collection of this checkout, including uncommitted changes, without files that git ignores;
    return the archive's path.

    Args:
        folder: target folder of the archive.
        repository: address of the sources, if galaxy.yml has none.

    Raises:
        InvalidInput: neither galaxy.yml nor `repository` states an address.
    """
    stated = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    if not (repository or stated.get("repository")):
        raise InvalidInput(
            "galaxy.yml has no repository, and Galaxy takes no collection without",
            do="state the address of the sources there, or with --repository",
        )
    with tempfile.TemporaryDirectory() as scratch:
        tree = copy(Path(scratch) / "tree")
        document = {**stated, "repository": repository or stated["repository"]}
        (tree / "galaxy.yml").write_text(yaml.safe_dump(document, sort_keys=False))
        program = Path(sys.executable).with_name("ansible-galaxy")
        command = [program, "collection", "build", "--force", "--output-path", folder.absolute(), tree]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    archive = folder / f"{stated['namespace']}-{stated['name']}-{stated['version']}.tar.gz"
    archive.write_bytes(reproducible(archive.read_bytes(), _date()))
    return archive


def reproducible(archive: bytes, when: int) -> bytes:
    """Return an archive of ansible-galaxy with its files sorted by name, all with one date.

    Without this its bytes depend on the file system and the time of the build.

    Args:
        archive: its content.
        when: the date, in seconds since 1970.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as whole:
        members = sorted(whole.getmembers(), key=lambda each: each.name)
        contents = {each.name: file.read() for each in members if (file := whole.extractfile(each))}
    listed, manifest = (json.loads(contents[name]) for name in ("FILES.json", "MANIFEST.json"))
    listed["files"].sort(key=lambda each: str(each["name"]))
    contents["FILES.json"] = json.dumps(listed, indent=1).encode()
    digest = hashlib.sha256(contents["FILES.json"]).hexdigest()
    manifest["file_manifest_file"]["chksum_sha256"] = digest
    contents["MANIFEST.json"] = json.dumps(manifest, indent=1).encode()
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as target:
        for each in members:
            content = contents.get(each.name, b"")
            each.mtime, each.size, each.pax_headers = when, len(content), {}
            target.addfile(each, io.BytesIO(content))
    return gzip.compress(tree.getvalue(), mtime=0)


def _date() -> int:
    """Return a date in seconds since 1970: SOURCE_DATE_EPOCH if set, else that of the last commit."""
    command = ["git", "log", "-1", "--format=%ct"]
    return int(os.environ.get("SOURCE_DATE_EPOCH") or subprocess.check_output(command, cwd=ROOT))


def copy(tree: Path) -> Path:
    """Copy the files of this checkout that git tracks or would add to `tree`, and return `tree`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree
