"""Command line of `scripts/release all`, `pyz`, `deb` and `wheelhouse`."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import yaml

from gpuprov import __version__
from gpuprov.errors import Exit, GpuprovError, InvalidInput
from maintenance.release import deb, formula, image, materials
from maintenance.release.locked import ROOT, pythons, read_pins
from maintenance.release.notes import CHANGELOG, notes
from maintenance.release.pyz import NAME, build_pyz, digest
from maintenance.release.sums import VERIFY, sign
from maintenance.release.wheelhouse import LOCK, fill, install_line
from maintenance.running import run

FOLDER = click.Path(path_type=Path, file_okay=False)
NOTES = "RELEASE.md"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Build the files of a release from this checkout. Nothing is uploaded."""


@command.command("all")
@click.argument("folder", type=FOLDER)
@click.option("--signer", required=True, help="key that signs the checksums, as for gpg --local-user")
@click.option("--repository", help="address of the sources, which Galaxy requires, if galaxy.yml has none")
@click.option(
    "--section", default=__version__, show_default=True, help="section of CHANGELOG.md for the notes"
)
def everything(folder: Path, signer: str, repository: str | None, section: str) -> Exit:
    """Write all files of a release, their checksums and the signature of these into a new FOLDER."""
    text = notes(section, CHANGELOG.read_text(encoding="utf-8"))
    stated = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    if not (repository or stated.get("repository")):
        raise InvalidInput(
            "galaxy.yml has no repository, and Galaxy takes no collection without",
            do="state the address of the sources there, or with --repository",
        )
    check_clean()
    new(folder)
    wheel = make_wheel(folder)
    for words in (["release", "wheel", str(folder), "lab"], ["release", "sdist", str(folder)]):
        script(*words)
    script("collection", "build", str(folder), *(["--repository", repository] if repository else []))
    with tempfile.TemporaryDirectory(prefix="gpuprov-") as scratch:
        build_pyz(wheel, folder / NAME, Path(scratch), date())
    pins = read_pins((ROOT / LOCK).read_text(encoding="utf-8"))
    (folder / materials.NAME).write_text(materials.materials(pins, __version__), encoding="utf-8")
    (folder / NOTES).write_text(text, encoding="utf-8")
    fingerprint = sign(folder, signer)
    for path in sorted(folder.iterdir()):
        click.echo(f"{digest(path)}  {path.stat().st_size:>10}  {path}")
    click.echo(f"\nsigned by {fingerprint}; to verify, in that folder:\n\n    {VERIFY}\n")
    return Exit.OK


@command.command("pyz")
@click.argument("folder", type=FOLDER)
def one_file(folder: Path) -> Exit:
    """Write gpuprov.pyz into FOLDER, from this checkout as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuprov-") as scratch:
        build_pyz(make_wheel(Path(scratch)), folder / NAME, Path(scratch), date())
    click.echo(f"{folder / NAME}#sha256={digest(folder / NAME)}")
    return Exit.OK


@command.command("deb")
@click.argument("folder", type=FOLDER)
@click.option("--maintainer", required=True, metavar="'NAME <ADDRESS>'", help="who answers for the package")
def debian_package(folder: Path, maintainer: str) -> Exit:
    """Write gpuprov.deb into FOLDER, from this checkout as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / deb.NAME
    with tempfile.TemporaryDirectory(prefix="gpuprov-") as scratch:
        build_pyz(make_wheel(Path(scratch)), Path(scratch) / NAME, Path(scratch), date())
        deb.build_deb(Path(scratch) / NAME, target, __version__, maintainer, Path(scratch), date())
    click.echo(f"{target}#sha256={digest(target)}")
    return Exit.OK


@command.command("image")
@click.argument("folder", type=FOLDER)
@click.option("--mirror", default=image.archive, show_default="the catalog's", help="Debian's archive")
def container_image(folder: Path, mirror: str) -> Exit:
    """Write gpuprov-image.tar into FOLDER, a container image, from this checkout as it is; as root."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / image.NAME
    with tempfile.TemporaryDirectory(prefix="gpuprov-", dir="/var/tmp") as scratch:
        image.build_image(make_wheel(Path(scratch)), target, __version__, mirror, Path(scratch), date())
    click.echo(f"{target}#sha256={digest(target)}")
    return Exit.OK


@command.command("formula")
@click.argument("pyz", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--url", required=True, help="address of gpuprov.pyz on the release's page")
@click.option("--homepage", required=True, help="address of the sources")
def homebrew_formula(pyz: Path, url: str, homepage: str) -> Exit:
    """Print the formula of a Homebrew tap for the gpuprov.pyz of this version's release."""
    click.echo(formula.formula(pyz, __version__, url, homepage), nl=False)
    return Exit.OK


@command.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--python",
    "version",
    type=click.Choice(["{}.{}".format(*each) for each in pythons()]),
    default="{}.{}".format(*sys.version_info),
    show_default=True,
    help="Python of the controller",
)
@click.option(
    "--machine",
    type=click.Choice(["x86_64", "aarch64"]),
    default=platform.machine(),
    show_default=True,
    help="its processor, as uname -m prints it; the system is Linux with glibc",
)
def wheelhouse(folder: Path, version: str, machine: str) -> Exit:
    """Write gpuprov's wheel and all its dependencies into FOLDER, for a site without a package index."""
    new(folder)
    wheel = make_wheel(folder)
    major, minor = map(int, version.split("."))
    fill(folder, wheel, (major, minor), machine)
    size = sum(path.stat().st_size for path in folder.iterdir())
    click.echo(f"{len(list(folder.glob('*.whl')))} wheels, {size} bytes; to install from them:\n")
    click.echo(f"    {install_line(folder, wheel)}\n\nor, for what is compiled of {NAME}:\n")
    click.echo(f"    PIP_NO_INDEX=1 PIP_FIND_LINKS={folder.absolute()} ./{NAME} --version\n")
    return Exit.OK


def new(folder: Path) -> None:
    """Create a folder; raise InvalidInput if it has files, which would be mixed with the new ones."""
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty", do="name a new folder")
    folder.mkdir(parents=True, exist_ok=True)


def check_clean() -> None:
    """Check that the checkout is a commit.

    Raises:
        InvalidInput: git lists changed or new files.
    """
    said = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    if said.stdout:
        raise InvalidInput(
            f"the checkout differs from its commit: {' '.join(said.stdout.split()[1::2])[:200]}",
            expected="no changed and no new files",
            do="commit them, or build in a clean clone",
        )


def date() -> int:
    """Return SOURCE_DATE_EPOCH, the date of the commit that `scripts/release` states, in seconds since 1970.

    Raises:
        InvalidInput: it is not stated, or not a number.
    """
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not stated.isdecimal():
        raise InvalidInput(
            f"SOURCE_DATE_EPOCH is {stated!r}", expected="seconds since 1970", do="use scripts/release"
        )
    return int(stated)


def make_wheel(folder: Path) -> Path:
    """Build gpuprov's wheel into a folder, and return its path; raises as `script`."""
    script("release", "wheel", str(folder))
    [wheel] = folder.glob("gpuprov-*.whl")
    return wheel


def script(name: str, *words: str) -> None:
    """Run a program of `scripts/`, its output on standard error.

    Raises:
        GpuprovError: it fails.
    """
    paths = [str(Path(word).absolute()) if word.startswith((".", "/")) else word for word in words]
    done = subprocess.run([ROOT / "scripts" / name, *paths], stdout=sys.stderr, check=False)
    if done.returncode:
        raise GpuprovError(f"scripts/{name} {' '.join(words)} exited with {done.returncode}")


def main(arguments: list[str]) -> int:
    """Run a command; return its exit code. Errors are printed to standard error."""
    return run(command, "scripts/release", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
