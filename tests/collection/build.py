"""Archive of the collection."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from gpuprov.errors import InvalidInput
from tests import ROOT


def build(folder: Path, repository: str | None = None) -> Path:
    """Build the collection of this checkout, including uncommitted changes, without files that git ignores.

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
    return folder / f"{stated['namespace']}-{stated['name']}-{stated['version']}.tar.gz"


def copy(tree: Path) -> Path:
    """Copy the files of this checkout that git tracks or would add to `tree`, and return `tree`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree
