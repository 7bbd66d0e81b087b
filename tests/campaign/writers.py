"""Runs every function that writes a file with every fault: the file must be the old or the new one.

    scripts/campaign writers [--only WORD]

Faults: a full file system (/tmp, /home, /var, the root's), a read-only one, another user's link in place of
the file, its folder or a temporary file, SIGKILL before each call that changes a file (x86_64). Needs root:
it works in its own mount namespace. Exit 1 if other users' lines were lost, a user was locked out, a file was
neither old nor new, or a path outside was changed; also if no error was found in a control.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gpuprov_replace

from tests.campaign._killed import killed_before
from tests.campaign._writers_table import CONTROLS, KEYS, USER, WRITERS, Writer

ROOTS = ("tmp", "home", "var", "etc")
PREDICTABLE = (".{0}.half", "{0}.new", "{0}.gpuprov", "{0}.gpuprov-new", ".{0}", ".{0}.{1}", "{0}.{1}")
SECRET = b"of root\n"
CALLS_MAX = 400


@dataclass
class Trial:
    """A folder with a writer's file in its old state, and paths outside that must not change."""

    writer: Writer
    root: Path
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    locked_out: bool = False

    def __post_init__(self) -> None:
        self.file = self.root / self.writer.path
        self.outside = self.root / "outside"
        for name in ROOTS:
            (self.root / name).mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        (self.root / "saved").write_bytes(self.writer.old + b"# saved\n")
        self.own(self.root / "saved")

    def fill_in(self) -> None:
        """Write the file in its old state."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(self.writer.old)
        self.own(self.file)
        folder = self.file.parent
        while folder.parent != self.root:
            os.chown(folder, self.writer.owner, self.writer.owner)
            folder.chmod(0o755)
            folder = folder.parent

    def own(self, path: Path) -> None:
        """Give a file the owner and the permissions that the writer must keep."""
        os.chown(path, self.writer.owner, self.writer.owner)
        path.chmod(self.writer.mode)

    def work(self) -> None:
        """Run the writer with any result."""
        os.environ["TMPDIR"] = str(self.root / "tmp")
        tempfile.tempdir = None
        try:
            self.writer.work(self.file)
        except BaseException:  # noqa: BLE001 - it may fail, but must not damage
            os._exit(1)

    def in_child(self, before: Callable[[], object] = lambda: None) -> None:
        """Do the work in a child process, after `before`, and wait for it."""
        child = os.fork()
        if not child:
            _quiet()
            before()
            self.work()
            os._exit(0)
        os.waitpid(child, 0)

    def judge(self, new: bytes, *, killed: bool = False, exchanged: bool = False) -> None:
        """Record violations; a file that was replaced by a link has no owner to keep."""
        writer, content = self.writer, None
        if self.file.is_file():
            content = self.file.read_bytes()
            about = self.file.stat()
            changed = writer.sets is not None and content == new != writer.old
            mode = writer.sets if changed else writer.mode
            if not exchanged and (about.st_uid, about.st_mode & 0o7777) not in (
                (writer.owner, mode),
                (0, mode)[: 2 * changed],
            ):
                self.wrong.append(f"owner {about.st_uid}, mode {about.st_mode & 0o7777:o}")
        if content not in (writer.old, new):
            self.wrong.append("gone" if content is None else f"neither old nor new: {len(content)} bytes")
        rest = (content or b"").splitlines()
        self.lost = sum(len(line) + 1 for line in writer.others.splitlines() if line not in rest)
        self.locked_out = writer.path == KEYS and bool(self.lost or content is None)
        if {each.name: each.read_bytes() for each in self.outside.iterdir()} != {"secret": SECRET}:
            self.wrong.append("touched outside")
        about = (self.outside / "secret").stat(), self.outside.stat()
        if any(each.st_uid for each in about):
            self.wrong.append("owner outside changed")
        left = [each for each in self.file.parent.iterdir() if gpuprov_replace.TEMPORARY.match(each.name)]
        if left and not killed:
            self.wrong.append("a temporary file is left")


def _quiet() -> None:
    """Connect standard input, output and error with /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)


@contextmanager
def trial(writer: Writer, area: Path) -> Iterator[Trial]:
    """Provide a trial in a new folder; its file systems are unmounted and it is removed at the end."""
    root = Path(tempfile.mkdtemp(dir=area))
    root.chmod(0o755)
    try:
        yield Trial(writer, root / "root")
    finally:
        for name in ROOTS:
            while (
                subprocess.run(["umount", root / "root" / name], check=False, capture_output=True).returncode
                == 0
            ):
                pass
        shutil.rmtree(root)


def mount(trial: Trial, name: str) -> None:
    """Mount a file system of 96 kB at a folder of the trial."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", trial.root / name], check=True)


def fill(folder: Path) -> None:
    """Fill the file system of a folder completely."""
    handle = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
    for size in (4096, 1):
        try:
            while True:
                os.write(handle, b"x" * size)
        except OSError:
            pass
    os.close(handle)


Fault = Callable[[Trial], None]


def full(name: str) -> Fault:
    """Return a fault: the file system of a folder is full."""

    def fault(trial: Trial) -> None:
        """Mount a small file system for the folder, write the first files, and fill it."""
        mount(trial, name)
        trial.fill_in()
        fill(trial.root / name)

    return fault


def read_only(trial: Trial) -> None:
    """Make the file system of the file read-only."""
    name = Path(trial.writer.path).parts[0]
    mount(trial, name)
    trial.fill_in()
    subprocess.run(["mount", "-o", "remount,ro", trial.root / name], check=True)


def link_at_folder(trial: Trial) -> None:
    """Replace the file's folder by a link of another user."""
    trial.fill_in()
    folder = trial.file.parent
    folder.rename(folder.with_name("moved"))
    _plant(folder, trial.outside)


def link_at_temporary(trial: Trial) -> None:
    """Put links of another user at predictable names of a temporary file."""
    trial.fill_in()
    os.chown(trial.file.parent, USER, USER)
    for form in PREDICTABLE:
        _plant(trial.file.parent / form.format(trial.file.name, "PID"), trial.outside / "secret")


def _plant(link: Path, target: Path) -> None:
    """Put a link of another user at a path."""
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    os.chown(link, USER, USER, follow_symlinks=False)
    os.chown(link.parent, USER, USER)


def link_at_file(trial: Trial) -> None:
    """Put a link of another user in the place of the file."""
    trial.fill_in()
    _plant(trial.file, trial.outside / "secret")


FAULTS: dict[str, Fault] = {
    "/tmp": full("tmp"),
    "/home": full("home"),
    "/var": full("var"),
    "/": full("etc"),
    "ro": read_only,
    "link": link_at_file,
    "folder": link_at_folder,
    "temp": link_at_temporary,
}


def tried(writer: Writer, name: str, new: bytes, area: Path) -> Trial:
    """Do one trial of a writer with a fault, judge what it left, and return it."""
    with trial(writer, area) as one:
        FAULTS[name](one)
        one.in_child(lambda: _own_pid(one) if name == "temp" else None)
        if name in (
            "link",
            "folder",
        ):  # the writer's file was moved or replaced: only paths outside count
            kept = one.writer.old
            (one.file if name == "link" else one.file.parent).unlink() if _is_link(one, name) else None
            if name == "folder":
                shutil.rmtree(one.file.parent, ignore_errors=True)
                one.file.parent.with_name("moved").rename(one.file.parent)
            elif not one.file.exists():
                one.file.write_bytes(kept)
                one.own(one.file)
        one.judge(new, exchanged=name == "link")
        return one


def _is_link(one: Trial, name: str) -> bool:
    """Return whether the file or its folder is a link, by the fault's name."""
    return (one.file if name == "link" else one.file.parent).is_symlink()


def _own_pid(one: Trial) -> None:
    """Create links with names that contain the process id, which only the process itself knows."""
    for form in PREDICTABLE[-2:]:
        _plant(one.file.parent / form.format(one.file.name, os.getpid()), one.outside / "secret")


def killed(writer: Writer, new: bytes, area: Path) -> Iterator[Trial]:
    """Kill the writer before each of its system calls, then run it once more."""
    for number in range(1, CALLS_MAX):
        with trial(writer, area) as one:
            one.fill_in()
            was_killed = killed_before(number, lambda: (_quiet(), one.work()))
            one.judge(new, killed=True)
            if was_killed and one.file.exists() and one.file.read_bytes() == writer.old:
                one.in_child()
                one.judge(new)
            yield one
            if not was_killed:
                return


def outcome(writer: Writer, area: Path) -> bytes:
    """Return the content that the writer produces without a fault."""
    with trial(writer, area) as one:
        one.fill_in()
        one.in_child()
        new = one.file.read_bytes()
        one.judge(new)
        if one.wrong or one.lost or new == writer.old:
            raise SystemExit(
                f"{writer.name} does not work where nothing fails: {one.wrong or 'nothing changed'}"
            )
        return new


def main() -> int:
    """Try all writers, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="writers whose name has this word")
    stated = parser.parse_args()
    if os.environ.pop("GPUPROV_WRITERS", "") != "apart":
        words = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-m",
            "tests.campaign.writers",
        ]
        os.execvpe("unshare", [*words, *sys.argv[1:]], {**os.environ, "GPUPROV_WRITERS": "apart"})  # noqa: S606
    sums: Counter[str] = Counter()
    blind = []
    print(f"{'writer':34}" + "".join(f"{name:>8}" for name in FAULTS) + f"{'killed':>8}")
    with tempfile.TemporaryDirectory(prefix="gpuprov-writers-") as name:
        area = Path(name)
        area.chmod(0o755)
        for writer in (*CONTROLS, *WRITERS):
            if stated.only not in writer.name:
                continue
            new = outcome(writer, area)
            rows = {fault: [tried(writer, fault, new, area)] for fault in FAULTS}
            rows["killed"] = list(killed(writer, new, area))
            bad = {
                fault: [each for each in trials if each.wrong or each.lost] for fault, trials in rows.items()
            }
            result = "".join(f"{f'{len(bad[fault])}/{len(trials)}':>8}" for fault, trials in rows.items())
            print(f"{writer.name:34}{result}", flush=True)
            if writer in CONTROLS:
                blind += [] if any(bad.values()) else [writer.name]
                continue
            for fault, trials in bad.items():
                for each in trials:
                    print(f"  BAD {fault}: {'; '.join(each.wrong)} {each.lost} bytes of others lost")
            every = [each for trials in rows.values() for each in trials]
            sums["tries"] += len(every)
            sums["bad"] += sum(map(len, bad.values()))
            sums["lost"] += sum(each.lost for each in every)
            sums["locked out"] += sum(each.locked_out for each in every)
    print(
        f"{sums['tries']} tries, {sums['bad']} bad, {sums['lost']} bytes of others lost, "
        f"{sums['locked out']} locked out" + "".join(f"; NOT FOUND: {each}" for each in blind)
    )
    return 1 if sums["bad"] or blind else 0


if __name__ == "__main__":
    sys.exit(main())
