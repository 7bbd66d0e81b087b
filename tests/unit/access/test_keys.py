"""Scripts that edit authorized_keys, as they are sent to nodes: no other key is ever lost."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from gpuprov.access.scripts import node_script

BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIMadeForThisRunMadeForThisRunMadeForThis1"
THEIR_BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAITheKeyOfAliceTheKeyOfAliceTheKeyOfAlic"
THEIRS = f"ssh-ed25519 {THEIR_BLOB} alice\n# kept\n\nssh-rsa AAAA2 bob"
OURS = f'restrict,from="127.0.0.1,::1",expiry-time="20300101" ssh-ed25519 {BLOB} gpuprov\n'
TURNED_AWAY = (
    f'no-pty,command="echo \'Please login as the user \\"debian\\" rather than the user \\"root\\".\''
    f';sleep 10" ssh-ed25519 {BLOB} me\n'
)
OWN = f"{os.geteuid()}:{os.getegid()}"
THROWAWAY = node_script("gpuprov.access", "node/throwaway.sh")
AUTHORIZE = f"set -eu\n{node_script('gpuprov.access', 'node/throwaway.sh').partition('refuse()')[0]}"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return the path of an authorized_keys with a user's key and gpuprov's."""
    path = tmp_path / "home/.ssh/authorized_keys"
    path.parent.mkdir(parents=True)
    path.write_text(f"{THEIRS}\n{OURS}")
    path.chmod(0o640)
    return path


def no_room() -> None:
    """Make every write fail, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def throwaway(*words: str | Path, full: bool = False) -> subprocess.CompletedProcess[str]:
    """Run throwaway.sh with these words; with `full` no file can grow."""
    command = ["sh", "-c", THROWAWAY, "throwaway.sh", *map(str, words)]
    before = no_room if full else None
    return subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=before)


def edit(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the shell function `edit_keys` with these words."""
    command = ["sh", "-c", f'{AUTHORIZE}edit_keys "$@"', "sh", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_our_line_goes_and_theirs_stay_with_the_mode(keys: Path) -> None:
    done = throwaway("remove", keys, BLOB)
    assert (done.returncode, done.stderr) == (0, "")
    assert keys.read_text() == f"{THEIRS}\n"
    assert keys.stat().st_mode & 0o7777 == 0o640


def test_a_full_disk_loses_no_key(keys: Path) -> None:
    before = keys.read_bytes()
    done = throwaway("remove", keys, BLOB, full=True)
    assert (done.returncode, keys.read_bytes()) == (4, before)
    assert "File too large" in done.stderr
    assert list(keys.parent.iterdir()) == [keys]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize("what", ["tmp", "home"])
def test_a_full_file_system_loses_no_key(keys: Path, tmp_path: Path, what: str) -> None:
    full = keys.parent if what == "home" else tmp_path / "tmp"
    full.mkdir(exist_ok=True)
    script = """
        cp -a "$1/." "$2/kept" && mount -t tmpfs -o size=16k none "$1" && cp -a "$2/kept/." "$1"
        dd if=/dev/zero of="$1/filler" bs=4k 2>/dev/null
        TMPDIR=$1 sh -c "$3" throwaway.sh remove "$4" "$5"
        echo $?; cat "$4"
    """
    (tmp_path / "kept").mkdir()
    words = ["unshare", "--mount", "sh", "-c", script, "sh", full, tmp_path, THROWAWAY, keys, BLOB]
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip("no mount namespace here")
    left = {"tmp": f"0\n{THEIRS}\n", "home": f"4\n{THEIRS}\n{OURS}"}
    assert done.stdout == left[what], done.stderr


@pytest.mark.parametrize("key", ["", "A", "alice", "ssh-ed25519"])
def test_what_is_no_key_removes_nothing(keys: Path, key: str) -> None:
    """Check that removing a text that is no key fails, and leaves the file unchanged."""
    before = keys.read_bytes()
    assert (throwaway("remove", keys, key).returncode, keys.read_bytes()) == (4, before)


def test_a_line_of_somebody_else_with_our_key_stays(keys: Path) -> None:
    keys.write_text(f"ssh-ed25519 {BLOB} me\n{OURS}")
    assert throwaway("remove", keys, BLOB).returncode == 0
    assert keys.read_text() == f"ssh-ed25519 {BLOB} me\n"


def test_the_home_is_that_of_the_account_whatever_the_user_s_full_name(tmp_path: Path) -> None:
    """Have `\\c` in it, at which `echo` of dash ends. The fake functions change nothing on this machine."""
    functions = THROWAWAY.partition("\ncase $1 in\nadd)")[0]
    fakes = r"""
        getent() { printf '%s\n' 'ops:x:7:8:Ops\c:/home/ops:/bin/sh'; }
        effective() { echo authorizedkeysfile .ssh/authorized_keys; }
        edit_keys() { printf '%s\n' "$1 $2 $3"; }
        ip() { :; }
        ss() { :; }
        add ops 60 ssh-ed25519 AAAA
    """
    done = subprocess.run(["sh", "-c", f"{functions}\n{fakes}"], check=False, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "add /home/ops/.ssh/authorized_keys 7:8", done.stderr


def test_what_was_made_is_unmade_unless_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / ".ssh/authorized_keys"
    done = edit("add", file, OWN, OURS.strip())
    assert done.stdout.split() == ["made", str(file.parent), "made", str(file)]
    assert [each.stat().st_mode & 0o777 for each in (file.parent, file)] == [0o700, 0o600]
    assert throwaway("remove", file, BLOB, file, file.parent).returncode == 0
    assert not file.parent.exists()
    edit("add", file, OWN, OURS.strip())
    with file.open("a") as stream:
        stream.write(THEIRS)
    assert throwaway("remove", file, BLOB, file, file.parent).returncode == 0
    assert file.read_text() == f"{THEIRS}\n"


def test_a_line_is_appended_once_and_after_a_whole_line(keys: Path) -> None:
    keys.write_text(THEIRS)
    for _twice in range(2):
        assert edit("add", keys, OWN, OURS.strip()).returncode == 0
        assert keys.read_text() == f"{THEIRS}\n{OURS}"


def test_a_key_logs_in_where_cloud_init_turned_it_away(keys: Path) -> None:
    keys.write_text(f"{TURNED_AWAY}{THEIRS}")
    done = edit("authorize", keys, OWN, "root", f"ssh-ed25519 {BLOB} me", f"ssh-ed25519 {THEIR_BLOB} alice")
    assert done.stdout.splitlines() == [
        "changed cloud-init's line that rejected logins as root removed",
        "changed key me may log in as root",
    ]
    assert keys.read_text() == f"{THEIRS}\nssh-ed25519 {BLOB} me\n"
    assert edit("authorize", keys, OWN, "root", f"ssh-ed25519 {BLOB} me").stdout == ""


@pytest.mark.parametrize("key", ["", "ssh-ed25519", "ssh-ed25519 two", f"ssh-ed25519 {BLOB}\nevil {BLOB}"])
def test_what_is_no_public_key_is_not_written(keys: Path, key: str) -> None:
    before = keys.read_bytes()
    done = edit("authorize", keys, OWN, "root", key)
    assert (done.returncode, keys.read_bytes()) == (4, before)
    assert "is not a public key" in done.stderr


def test_a_file_of_any_size_is_no_memory_error(keys: Path) -> None:
    os.truncate(keys, 200 << 30)  # sparse
    done = edit("authorize", keys, OWN, "debian", f"ssh-ed25519 {BLOB} me")
    assert done.returncode
    assert done.stderr.splitlines()[-1].endswith("has 214748364800 bytes; expected at most 16777216")


def test_a_managed_link_is_kept(keys: Path, tmp_path: Path) -> None:
    real = tmp_path / "managed"
    keys.rename(real)
    keys.symlink_to("../../managed")
    assert throwaway("remove", keys, BLOB).returncode == 0
    assert keys.is_symlink()
    assert real.read_text() == f"{THEIRS}\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
@pytest.mark.parametrize("planted", ["file", "folder"])
def test_a_link_of_the_user_leads_nowhere_else(tmp_path: Path, planted: str) -> None:
    tmp_path.chmod(0o755)
    roots, home = tmp_path / "root", tmp_path / "home"
    roots.mkdir()
    home.mkdir()
    (roots / "authorized_keys").write_text(THEIRS)
    link, to = (home / ".ssh", roots) if planted == "folder" else (home / "keys", roots / "authorized_keys")
    link.symlink_to(to)
    for path in (home, link):
        os.chown(path, 4321, 4321, follow_symlinks=False)
    file = link / "authorized_keys" if planted == "folder" else link
    done = edit("add", file, "4321:4321", OURS.strip())
    assert done.returncode == 4
    assert "a link of another user" in done.stderr
    assert (roots / "authorized_keys").read_text() == THEIRS
    assert list(roots.iterdir()) == [roots / "authorized_keys"]
