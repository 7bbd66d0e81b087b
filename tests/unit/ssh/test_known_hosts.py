"""Known-hosts files: the meaning of a line for ssh, and broken lines."""

from __future__ import annotations

import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
import pytest

from gpuprov.errors import InvalidInput
from gpuprov.ssh import reread
from gpuprov.ssh.known_hosts import KnownFiles, KnownHosts, known_hosts, names_of, parse_key, read_known_hosts
from gpuprov.ssh.reread import LARGEST, reread_when_written
from gpuprov.ssh.revoked_keys import RevokedKeys
from tests.unit.hostile.timing import cost_of

KEY, OTHER = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate(bits=384)


def words(key: paramiko.PKey) -> str:
    """Return a key as `TYPE BASE64`."""
    return f"{key.get_name()} {key.get_base64()}"


def read(tmp_path: Path, *lines: str) -> KnownHosts:
    """Return the known hosts in a file with these lines."""
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return read_known_hosts(path)


@pytest.mark.parametrize(
    "names",
    [
        "gpu01",
        "GPU01",
        "other,gpu01",
        "gpu*",
        "gpu0?",
        "*",
        "*,!gpu01",
        "!gpu0?,gpu*",
        "gpu",
        "gpu1",
        "[gpu01]:22",
        "gpu[01]",
        "gpu[0]*",
        "[gpu01]*",
        "*g*u*1*",
        "*g*u*1?",
        "?*?*?0??",
        "**01**",
        "*,!*?*?*1",
        "|1|AAAA|BBBB",
    ],
)
def test_names_match_as_they_do_for_ssh_keygen(tmp_path: Path, names: str) -> None:
    found = read(tmp_path, f"{names} {words(KEY)}")
    theirs = subprocess.run(
        ["ssh-keygen", "-F", "gpu01", "-f", str(found.path)], capture_output=True, check=False
    )
    assert bool(found.keys("gpu01")) == (theirs.returncode == 0)


@pytest.mark.parametrize(
    "pattern", ["*a" * 12 + "*c", "*a" * 120 + "*c", "*" + "?" * 60 + "c", "*a" * 100_000]
)
def test_no_pattern_takes_long(tmp_path: Path, pattern: str) -> None:
    """Compare with a name that only the end of a pattern excludes; another person may have written both."""
    found = read(tmp_path, f"{pattern} {words(KEY)}")
    assert cost_of(lambda: found.keys("a" * 60)).seconds < 1


def test_hashed_names_as_ssh_keygen_writes_them(tmp_path: Path) -> None:
    path = read(tmp_path, f"gpu01 {words(KEY)}", f"[gpu02]:2222 {words(OTHER)}").path
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], capture_output=True, check=True)
    hashed = read_known_hosts(path)
    assert path.read_text().startswith("|1|")
    assert hashed.keys(*names_of("gpu01", 22)) == {KEY.get_name(): KEY}
    assert hashed.keys(*names_of("gpu02", 2222)) == {OTHER.get_name(): OTHER}
    assert not hashed.keys("gpu03")


def test_a_key_of_the_address_is_good_on_its_ports_where_they_have_none(tmp_path: Path) -> None:
    found = read(tmp_path, f"gpu01 {words(KEY)}", f"[gpu01]:2222 {words(OTHER)}")
    assert found.keys(*names_of("gpu01", 2200)) == {KEY.get_name(): KEY}
    assert found.keys(*names_of("gpu01", 2222)) == {OTHER.get_name(): OTHER}


@pytest.mark.parametrize(
    "line",
    [
        "gpu02 ecdsa-sha2-nistp256",
        "gpu02 ecdsa-sha2-nistp256 %%%",
        "gpu02 ecdsa-sha2-nistp256 AAAA",
        "gpu02 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKXl",
        f"gpu02 ssh-ed25519 {KEY.get_base64()}",
        f"gpu02 {KEY.get_name()} {KEY.get_base64()}AAAA",
        f"gpu02 {KEY.get_name()} {KEY.get_base64()[:-8]}",
        f"|1|x|y {words(KEY)}",
        f"@unheard gpu02 {words(KEY)}",
        "\x00\x01",
        "gpu02\u2003ssh-rsa é",
    ],
)
def test_a_broken_line_is_named_and_breaks_no_other(tmp_path: Path, line: str) -> None:
    """Report a broken line and read the others: nodes print such lines, which must not affect other nodes."""
    found = read(tmp_path, f"gpu01 {words(KEY)}", line, f"gpu03 {words(KEY)}")
    assert list(found.broken) == [2]
    assert f"; {found.path}:2 is " in found.complaint()
    assert found.keys("gpu01") == found.keys("gpu03") == {KEY.get_name(): KEY}
    assert not found.keys("gpu02")


def test_what_says_nothing_is_not_broken(tmp_path: Path) -> None:
    """Check that empty lines, comments and unknown types are ignored, not reported as broken."""
    lines = [
        "",
        "# a comment",
        "   ",
        f"@cert-authority * {words(KEY)}",
        "gpu02 ssh-dss AAAAB3NzaC1kc3M=",
        "\r",
    ]
    found = read(tmp_path, *lines)
    assert (found.broken, found.keys("gpu02")) == ({}, {})


def test_a_revoked_key_is_nobodys(tmp_path: Path) -> None:
    found = read(tmp_path, f"gpu* {words(KEY)}", f"gpu01 {words(OTHER)}", f"@revoked gpu01 {words(KEY)}")
    assert found.keys("gpu01") == {OTHER.get_name(): OTHER}
    assert found.keys("gpu02") == {KEY.get_name(): KEY}
    assert found.revocation(KEY, "gpu01") == f"{found.path}:3"
    assert found.revocation(KEY, "gpu02") is None
    assert found.revocation(KEY) == f"{found.path}:3"
    assert found.revocation(OTHER) is None


@pytest.mark.parametrize("rest", ["", "* ssh-ed25519", "* ssh-ed25519 %%%"])
def test_what_is_to_be_revoked_has_to_be_readable(tmp_path: Path, rest: str) -> None:
    with pytest.raises(InvalidInput, match=r"known_hosts:2: @revoked has no readable key.* correct the line"):
        read(tmp_path, f"gpu01 {words(KEY)}", f"@revoked {rest}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory; expected a known-hosts file"):
        read_known_hosts(tmp_path)


def test_the_first_of_several_keys_of_one_type_counts(tmp_path: Path) -> None:
    second = paramiko.ECDSAKey.generate()
    found = read(tmp_path, f"gpu01 {words(KEY)}", f"gpu01 {words(second)}")
    assert found.keys("gpu01") == {KEY.get_name(): KEY}


def test_keys_are_what_they_say() -> None:
    """Check that a key is parsed, and one of another type than stated is refused."""
    assert parse_key(KEY.get_name(), KEY.get_base64()) == KEY
    with pytest.raises(ValueError, match="not a key of the type ssh-rsa"):
        parse_key("ssh-rsa", KEY.get_base64())


def test_a_key_has_a_limit_of_its_size() -> None:
    """Refuse a modulus that takes seconds to read, each time that a run reads the file."""
    large = paramiko.Message()
    large.add_string("ssh-rsa")
    large.add_mpint(65537)
    large.add_mpint(1 << 16_384)
    assert parse_key("ssh-rsa", b64encode(large.asbytes()).decode()).get_bits() == 16_385
    large.add_bytes(bytes(4096))
    for beyond in (b"\0\0\0\7ssh-rsa\0\4\0\0", b"\0\0\0\7ssh-rsa\0\0\0\1\3\0\4\0\0n"):
        with pytest.raises(ValueError, match="beyond its end"):
            parse_key("ssh-rsa", b64encode(beyond).decode())
    with pytest.raises(ValueError, match="more than 4096"):
        parse_key("ssh-rsa", b64encode(large.asbytes()).decode())


def test_a_file_is_read_anew_once_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    assert known_hosts(str(path)).keys("gpu01") == {}
    path.write_text(f"gpu01 {words(KEY)}\n")
    assert set(known_hosts(str(path)).keys("gpu01")) == {KEY.get_name()}
    assert known_hosts(str(path)) is known_hosts(str(path))
    path.write_text(f"another {words(KEY)}\n")
    assert known_hosts(str(path)).keys("gpu01") == {}


def test_a_file_that_everybody_may_write_says_nothing_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(InvalidInput, match=rf"written by every user.*`chmod o-w {path}`"):
        read_known_hosts(path)


def test_files_of_all_hosts_are_small_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count links to a file: what is read of each is kept."""
    monkeypatch.setattr(reread, "LARGEST", 250)
    (tmp_path / "a").write_text("#" * 100)
    read = reread_when_written(read_known_hosts)
    for name in ("b", "c"):
        (tmp_path / name).symlink_to("a")
    read(tmp_path / "a")
    read(tmp_path / "b")
    read(tmp_path / "a")
    with pytest.raises(InvalidInput, match="c and 2 others of its kind have 300 bytes; expected at most 250"):
        read(tmp_path / "c")


def test_what_is_kept_of_a_file_counts(tmp_path: Path) -> None:
    """Count short lines as what is kept of them, also in another file."""
    read = reread_when_written(read_known_hosts, lambda found: found.size)
    for name in "ab":
        (tmp_path / name).write_text("#\n" * 140_000)
    read(tmp_path / "a")
    with pytest.raises(InvalidInput, match=f"b and 1 others of its kind have .* expected at most {LARGEST}"):
        read(tmp_path / "b")


KIND = f"{words(KEY)}\n"
MANY = (
    "has too many lines and names; expected at most 262144, of which a hashed name counts as 3 and a pattern"
    " as 10; state .* smaller files"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x\n" * 8_000_000, MANY),
        ("@revoked a x AAAA\n" * 800_000, MANY),
        (",".join(f"{number:x}" for number in range(2_000_000)) + f" {KIND}", MANY),
        (f"gpu01 {KIND}" * 9 + "".join(f"*a{number}?b* x AAAA\n" for number in range(200_000)), MANY),
        (",".join(["*" + "?" * 400 + "c"] * 16000) + f" {KIND}", MANY),
        ("|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAAAAAAAAAAAAAAAAAAAAAAAAA= x AAAA\n" * 100_000, MANY),
        (
            "#" * (LARGEST + 1),
            f"cannot be read: larger than {LARGEST} bytes; expected .*; state .* smaller files",
        ),
    ],
    ids=["broken", "revoked", "names", "patterns", "long patterns", "hashed", "bytes"],
)
def test_no_file_takes_much_time_or_memory(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "known_hosts").write_text(text)
    del text
    cost = cost_of(lambda: read_known_hosts(tmp_path / "known_hosts"))
    assert (cost.seconds < 3, cost.memory < 128 << 20) == (True, True), cost
    with pytest.raises(InvalidInput, match=said):
        read_known_hosts(tmp_path / "known_hosts")


HASHED = "|1|AAAAAAAAAAAAAAAAAAAAAAAAAAA=|AAAAAAAAAAAAAAAAAAAAAAAAAAA="
NAME = "a" * 60
WILD = "*a" * 14 + "?" * 16 + "*"
"""A pattern that fits `NAME`, until a character follows that the name has not."""
WORST: dict[str, Callable[[], Iterator[str]]] = {
    "patterns": lambda: (f"{WILD}{number} {KIND}" for number in range(23_000)),
    "hashed": lambda: (f"{HASHED} {KIND}" for _ in range(60_000)),
    "revoked patterns": lambda: (f"@revoked {WILD}{each} {KIND}gpu01 {KIND}" for each in range(20_000)),
    "revoked and hashed": lambda: (f"@revoked {HASHED} {KIND}gpu01 {KIND}" for _ in range(40_000)),
    "revoked names": lambda: iter([f"@revoked {'b,' * 160_000}b {KIND}", f"gpu01 {KIND}" * 80_000]),
}
"""Name → lines within the limit that take long to compare with a host's name."""


@pytest.mark.parametrize("what", WORST)
def test_no_file_takes_long_for_each_host(tmp_path: Path, what: str) -> None:
    """Ask for the names of a host whose key is revoked at the end of the file."""
    text = "".join(WORST[what]()) + f"@revoked gpu01 {KIND}"
    known = KnownHosts(tmp_path)
    known.take(text)
    assert max(len(text), known.size) in range(LARGEST * 3 // 4, LARGEST)
    assert cost_of(lambda: known.keys(NAME, "gpu01")).seconds < 1


def test_a_key_that_a_line_revokes_is_in_no_list_looked_for(tmp_path: Path) -> None:
    """Check that ssh-keygen is not started for it: a file can have 80,000 such keys."""
    known = read(tmp_path, f"gpu01 {words(KEY)}", f"@revoked gpu01 {words(KEY)}", f"gpu02 {words(KEY)}")
    files = KnownFiles([known], [RevokedKeys(tmp_path / "missing", {}, binary=True)])
    assert files.keys("gpu01") == {}
    with pytest.raises(InvalidInput, match="missing"):
        files.keys("gpu02")


def test_of_many_broken_lines_a_few_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, *["x"] * 1000)
    assert list(found.broken) == [1, 2, 3]
    assert found.complaint().endswith(":3 is not [MARKER] NAMES TYPE KEY and 997 lines more")


@pytest.mark.parametrize("line", [f"gpu01 {KIND}", "@revoked broken"])
def test_threads_read_a_file_once(tmp_path: Path, line: str) -> None:
    """Check also a file that is refused: nodes that state it would each read it again."""
    path, begun = tmp_path / "known_hosts", []

    def slow(path: Path) -> KnownHosts:
        begun.append(path)
        time.sleep(0.05)
        return read_known_hosts(path)

    def ask(read: Callable[[Path], KnownHosts]) -> str:
        try:
            return str(list(read(path).keys("gpu01")))
        except InvalidInput as error:
            return str(error)

    path.write_text(line)
    cached = reread_when_written(slow)
    with ThreadPoolExecutor(16) as threads:
        answers = set(threads.map(lambda _: ask(cached), range(16)))
    assert (answers, begun) == ({ask(read_known_hosts)}, [path])
    path.write_text(f"another {KIND}")
    assert (ask(cached), begun) == ("[]", [path] * 2)


def test_a_file_whose_mode_was_corrected_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu01 {KIND}")
    path.chmod(0o666)
    with pytest.raises(InvalidInput, match="written by every user"):
        known_hosts(str(path))
    path.chmod(0o644)
    assert set(known_hosts(str(path)).keys("gpu01")) == {KEY.get_name()}


def test_many_honest_keys_are_few_bytes(tmp_path: Path) -> None:
    """Check that the limit has room for a key of each of 100,000 hosts with a name and an address."""
    key = f"ssh-ed25519 {'A' * 68}"
    text = "".join(
        f"gpu{number:05d},10.{number // 250}.0.{number % 250} {key}\n" for number in range(100_000)
    )
    assert len(text) < LARGEST
    KnownHosts(tmp_path).take(text.replace(key, "x AAAA"))
