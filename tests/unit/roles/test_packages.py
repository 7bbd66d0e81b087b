"""Decisions of the role packages from dpkg's answers, and its use of apt's messages."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import gpuprov_apt as apt
import gpuprov_dnf as dnf
import pytest
from gpuprov_failures import Failed
from gpuprov_node import Package

from tests.unit.roles.scripts import script

transaction = script("packages", "transaction")
OLD, NEW = {"libnccl2": "2.27-1", "libnccl-dev": "2.27-1"}, {"libnccl2": "2.28-1", "libnccl-dev": "2.28-1"}
PIN = "nvidia-driver-pinning-"
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
            "the package repository has no headers for the target kernel",
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
            "the signature of the package repository is not valid",
        ),
        (
            f"An error occurred during the signature verification. {MIRROR}  InRelease: The following "
            "signatures were invalid: EXPKEYSIG 21B5EB7239F73EEE Failed to fetch",
            "the signature of the package repository is not valid",
        ),
        (
            f"Conflicting values set for option Signed-By regarding source {MIRROR}/ /: /a != /b",
            "another file on the node names the same repository with another key or option",
        ),
        (
            f"Conflicting values set for option Trusted regarding source {MIRROR}/ /",
            "another file on the node names the same repository with another key or option",
        ),
        (
            "Package 'build-essential' has no installation candidate",
            "the node's own sources do not have a package of the distribution",
        ),
        (
            "Unable to locate package dkms",
            "the node's own sources do not have a package of the distribution",
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
            "the packages conflict with others that are installed or held",
        ),
        (
            "Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (apt-get)",
            "another apt or dpkg did not finish in time",
        ),
    ],
)
def test_the_first_cause_that_fits(said: str, cause: str) -> None:
    failure = apt.failure("NCCL could not be installed", apt.Failed(said))
    assert failure["says"].startswith(f"NCCL could not be installed: {cause} ({said[:250]}")
    assert failure["do"]


def test_a_cause_that_nobody_knows_is_reported_in_apts_own_words() -> None:
    failure = apt.failure("NCCL could not be removed", apt.Failed("dpkg: error: the moon is full"))
    assert failure == {"says": "NCCL could not be removed: dpkg: error: the moon is full", "do": None}


def test_the_words_of_a_program_that_fails_are_its_errors_each_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = "echo reading; for i in 1 2; do echo E: no room >&2; done; echo N: by the way >&2; exit 100"
    with pytest.raises(apt.Failed, match=r"^no room$") as failed:
        apt.call("sh", "-c", result)
    assert failed.value.status == 100
    assert capfd.readouterr().out == "reading\n"


def order(**said: Any) -> Any:
    """Return the role's order, for NCCL 2.28 unless stated otherwise."""
    sets = {
        "what": "NCCL 2.28",
        "sets": {"nccl": NEW},
        "beside": [],
        "along": {},
        "along_beside": [],
        "unwanted": [],
        "idle": [],
    }
    how = {"allow_downgrade": False, "refreshed": True, "check": False, "lock_timeout": 1, "fetch_timeout": 1}
    return transaction.Order(**{**sets, **how, **said})


@pytest.mark.parametrize(
    ("said", "found", "words", "residue"),
    [
        pytest.param({}, ({}, {}, {}), ["libnccl-dev=2.28-1", "libnccl2=2.28-1"], [], id="fresh"),
        pytest.param({}, (NEW, {}, {}), [], [], id="there already"),
        pytest.param(
            {}, (OLD, {}, {}), ["libnccl-dev=2.28-1", "libnccl2=2.28-1"], [], id="of another version"
        ),
        pytest.param(
            {},
            ({**NEW, "libnccl1": "1"}, {}, {"nccl": ["libnccl1", "libnccl2"]}),
            ["libnccl1-"],
            [],
            id="was of the set",
        ),
        pytest.param(
            {},
            ({**NEW, "libnccl1": "1"}, {}, {"nccl": ["libnccl1"], "dcgm": ["libnccl1"]}),
            [],
            [],
            id="is of another set as well",
        ),
        pytest.param(
            {"sets": {"nccl": {}}},
            (OLD, {}, {"nccl": [*OLD]}),
            ["libnccl-dev-", "libnccl2-"],
            [],
            id="nothing wanted any more",
        ),
        pytest.param(
            {"unwanted": ["nvidia-driver-pinning-[0-9]+=", "libnccl"]},
            ({**NEW, f"{PIN}570": "1"}, {f"{PIN}550": "1"}, {}),
            [f"{PIN}570-"],
            [f"{PIN}550"],
            id="unwanted, and what it left",
        ),
        pytest.param(
            {"sets": {"docker": {}}, "unwanted": ["docker\\.io="]},
            ({}, {"docker.io": "20"}, {"docker": ["docker.io"]}),
            [],
            [],
            id="unwanted, and left with its data",
        ),
        pytest.param(
            {"beside": ["dkms", "gcc"]}, ({**NEW, "gcc": "12"}, {}, {}), ["dkms"], [], id="in any version"
        ),
    ],
)
def test_what_a_set_needs(
    said: dict[str, Any], found: tuple[Any, ...], words: list[str], residue: list[str]
) -> None:
    """Check the sets, the transaction and the residue that are planned for packages."""
    plan = transaction.planned(order(**said), transaction.Found(*found))
    assert (plan.sets, plan.transaction, plan.residue) == ([*order(**said).sets], words, residue)


def test_first_packages_come_for_sets_that_the_node_has_nothing_of() -> None:
    sets = {"nccl": NEW, "cudnn": {"libcudnn9": "9"}, "dcgm": {"dcgm": "4"}, "tools": {}}
    found = transaction.Found({"libnccl2": "2.27-1"}, {}, {"cudnn": []})
    plan = transaction.planned(transaction.joined(order(sets={}, along=sets), found), found)
    assert plan == (["dcgm"], ["dcgm=4"], [], ["dcgm"])


RECORDED = {"nccl": ["libnccl-dev", "libnccl2"], "dcgm": ["dcgm"]}


@pytest.mark.parametrize(
    ("installed", "records", "sets"),
    [
        ({**NEW, "dcgm": "4", "dbus": "1"}, RECORDED, ["dcgm", "nccl"]),
        ({**NEW, "dcgm": "4"}, RECORDED, []),
        ({**OLD, "dcgm": "4", "dbus": "1"}, RECORDED, []),
        ({**NEW, "dcgm": "4", "dbus": "1"}, {**RECORDED, "dcgm": ["dcgm", "datacenter-gpu-manager"]}, []),
        ({**NEW, "dcgm": "4", "dbus": "1"}, {"nccl": RECORDED["nccl"]}, []),
    ],
)
def test_sets_are_settled_if_nothing_is_left_to_do_for_any(
    installed: dict[str, str], records: dict[str, list[str]], sets: list[str]
) -> None:
    whole = order(sets={}, along={"nccl": NEW, "dcgm": {"dcgm": "4"}}, along_beside=["dbus"])
    assert transaction.settled(whole, transaction.Found(installed, {}, records)) == sets
    assert transaction.settled(order(), transaction.Found(installed, {}, records)) == []


@pytest.mark.parametrize(("there", "words"), [(OLD, 4), (NEW, 0)])
def test_others_come_along_with_a_set_that_needs_something(
    node: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    there: dict[str, str],
    words: int,
) -> None:
    rows = [Package("i", "i", name, version) for name, version in there.items()]
    monkeypatch.setattr(transaction.node, "packages", lambda: rows)
    along = {"along": {"dcgm": {"dcgm": "4"}}, "along_beside": ["dbus"]}
    said = answer(capsys, monkeypatch, check=True, **along)
    assert (len(said["transaction"]), said["led"]) == (words, bool(words))
    assert said["sets"] == (["nccl", "dcgm"] if words else ["nccl"])


def test_what_cannot_come_along_is_left_to_its_turn(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*command: str) -> None:
        """Record a command; it fails if DCGM is in it."""
        node.append(list(command))
        if "dcgm=4" in command:
            raise apt.Failed("Version '4' for 'dcgm' was not found", 100)

    monkeypatch.setattr(apt, "call", call)
    said = answer(capsys, monkeypatch, along={"dcgm": {"dcgm": "4"}})
    assert (said["sets"], said["led"]) == (["nccl"], False)
    assert ["dcgm=4" in command for command in node] == [True, False, False]
    assert "left undone: libnccl-dev=2.28-1" in said["failure"]["says"]  # the transaction continued


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are run on a node without packages."""
    ran: list[list[str]] = []
    monkeypatch.setattr(transaction, "RECORDS", tmp_path / "gpuprov/packages")
    monkeypatch.setattr(transaction.node, "packages", list)
    monkeypatch.setattr(apt, "set_environment", lambda: None)
    monkeypatch.setattr(apt, "simulated", lambda _: "")
    monkeypatch.setattr(apt, "call", lambda *command: ran.append(list(command)))
    return ran


def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, **said: Any) -> Any:
    """Carry out an order and return the resulting document."""
    monkeypatch.setattr("sys.argv", ["-", json.dumps(order(**said)._asdict())])
    transaction.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_what_belongs_to_a_set_is_remembered_and_read_again(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Package(*row.split()) for row in ("i i libnccl2 2.28-1", "h i libnccl-dev 2.28-1", "r c dcgm 4")]
    monkeypatch.setattr(transaction.node, "packages", lambda: rows)
    for check, remembers in ((True, ["nccl"]), (False, ["nccl"]), (False, [])):
        said = answer(capsys, monkeypatch, check=check)
        assert (said["transaction"], said["remembers"]) == ([], remembers)
        assert said["changed"] is bool(remembers)
    assert transaction.look() == (NEW, {"dcgm": "4"}, {"nccl": ["libnccl-dev", "libnccl2"]})
    assert node == []


def test_success_that_leaves_something_undone_is_none(
    node: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = answer(capsys, monkeypatch, refreshed=False)
    left = "apt reported success but left undone: libnccl-dev=2.28-1, libnccl2=2.28-1"
    assert said["failure"] == {"says": f"NCCL 2.28 could not be installed: {left}", "do": None}
    assert said["refreshed"]
    verbs = ("update", "--download-only", "install")
    assert [next(verb for verb in verbs if verb in command) for command in node] == list(verbs)
    assert not list(tmp_path.iterdir())


def test_what_could_not_come_at_once_is_named(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer(capsys, monkeypatch, what="", sets={}, along={"nccl": NEW}, along_beside=["nftables"])
    assert said["failure"]["says"].startswith("packages of nccl, nftables could not be installed: ")


def test_a_set_that_does_not_fit_does_not_keep_away_what_others_need(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*command: str) -> None:
        """Record a command; it fails if Docker is in it."""
        node.append(list(command))
        if "docker.io=20.10" in command:
            raise apt.Failed("Packages need to be removed but remove is disabled.", 100)

    monkeypatch.setattr(apt, "call", call)
    monkeypatch.setattr(
        apt, "simulated", lambda words: "Remv docker-ce [5:29.0]\n" * ("docker.io=20.10" in words)
    )
    there = [[], [Package("i", "i", "nftables", "1.0")]]
    monkeypatch.setattr(transaction.node, "packages", lambda: there.pop(0))
    sets = {"docker": {"docker.io": "20.10"}, "nccl": NEW}
    said = answer(capsys, monkeypatch, what="", sets={}, along=sets, along_beside=["nftables"])
    assert (said["failure"], said["sets"], said["transaction"]) == (None, [], ["nftables"])


def test_fetching_that_takes_too_long_touches_nothing(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*command: str) -> None:
        node.append(list(command))
        raise apt.Failed("timeout exited with 124", 124)

    monkeypatch.setattr(apt, "call", call)
    said = answer(capsys, monkeypatch)
    assert [command[0] for command in node] == ["timeout"]
    assert "the package repository is too slow (fetching took longer than 1 s" in said["failure"]["says"]


SIMULATED = """\
Remv docker.io [20.10.24+dfsg1-1+deb12u1]
Remv containerd [1.6.20~ds1-1+deb12u3]
Inst runc [1.1.4] (1.1.5+ds1-1+deb12u1 Debian:12.11/oldstable [amd64])
"""


def test_what_is_not_of_the_set_is_never_removed(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Package("i", "i", "containerd", "1.6.20")
    monkeypatch.setattr(transaction.node, "packages", lambda: [row])
    monkeypatch.setattr(apt, "simulated", lambda _: SIMULATED)
    result = {"what": "containerd", "sets": {"containerd": {}}, "unwanted": ["containerd="]}
    said = answer(capsys, monkeypatch, **result)
    assert said["failure"]["says"] == (
        "containerd could not be removed: other packages would be removed as well"
        " (apt would remove docker.io)"
    )
    assert node == []


def test_what_packages_replace_is_looked_at_before_it_goes(
    node: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*command: str) -> None:
        """Record a command; it fails if nothing may be removed."""
        node.append(list(command))
        if "--no-remove" in command:
            raise apt.Failed("Packages need to be removed but remove is disabled.", 100)

    monkeypatch.setattr(apt, "call", call)
    monkeypatch.setattr(apt, "simulated", lambda _: SIMULATED)
    said = answer(capsys, monkeypatch)
    assert "(apt would remove containerd, docker.io)" in said["failure"]["says"]
    assert len(node) == 1


@pytest.mark.parametrize(
    ("script", "takes"),
    [
        ('if [ "$1" = purge ]; then deb-systemd-helper purge containerd.service; fi\n', False),
        ('dpkg-maintscript-helper rm_conffile /etc/x 1.2.0\\~ -- "$@"\n', False),
        ("rm -f /etc/apt/preferences.d/nvidia-driver-pin\n", False),
        ("/var/lib/docker/nuke-graph-directory.sh /var/lib/docker\n", True),
        ("rm -rf /var/lib/containerd\n", True),
        ("find /var/lib/x -depth -delete\n", True),
    ],
)
def test_a_script_that_takes_data_along_is_known(script: str, takes: bool) -> None:
    assert bool(apt.TAKES_DATA.search(script)) is takes


def test_only_what_takes_nothing_else_along_is_purged(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(apt, "call", lambda *command: ran.append(command))
    monkeypatch.setattr(apt, "purge_deletes_data", lambda name: name == "docker.io")
    apt.purge(["docker.io"])
    assert ran == []
    apt.purge(["docker.io", f"{PIN}580"])
    assert ran == [("dpkg", "--purge", "--force-depends", "--force-hold", f"{PIN}580")]


def test_lists_are_read_once_nobody_else_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)", ""]
    waited: list[float] = []

    def call(*_: str) -> None:
        """Fail with the next message, until there is none."""
        if line := said.pop(0):
            raise apt.Failed(line, 100)

    monkeypatch.setattr(apt, "call", call)
    monkeypatch.setattr(apt.time, "sleep", waited.append)
    apt.read_lists(60, 60)
    assert (said, waited) == ([], [apt.PAUSE])


def test_dpkg_s_reason_is_in_the_message() -> None:
    unpack = (
        "Unpacking cuda-toolkit-13-0 (13.0.2-1) ...\n"
        "dpkg: error processing archive /var/cache/apt/archives/x.deb (--unpack):\n"
        " trying to overwrite '/usr/bin/nvcc', which is also in package cuda-nvcc-13-0 13.0.88-1\n"
        "Errors were encountered while processing:\n /var/cache/apt/archives/x.deb\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    assert apt.errors_of(unpack) == (
        "dpkg: error processing archive /var/cache/apt/archives/x.deb (--unpack): trying to overwrite "
        "'/usr/bin/nvcc', which is also in package cuda-nvcc-13-0 13.0.88-1 "
        "Sub-process /usr/bin/dpkg returned an error code (1)"
    )
    assert apt.errors_of("Reading package lists...\n") == ""


@pytest.mark.parametrize(
    "name", ["-oDPkg::Pre-Invoke::=x", "--allow-unauthenticated", "openssh-server-", "a\nb"]
)
def test_what_is_no_name_is_not_given_to_the_package_manager(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check names that a lock can have from a catalog: an option runs commands, `NAME-` is a removal."""
    order: dict[str, Any] = {"sets": {}, "along": {}, "along_beside": [], "unwanted": [], "idle": []}
    order |= {"what": "x", "beside": [name], "allow_downgrade": False, "refreshed": True, "check": False}
    order |= {"lock_timeout": 1, "fetch_timeout": 1}
    ran: list[Any] = []
    monkeypatch.setattr(transaction, "look", lambda: transaction.Found({}, {}, {}))
    monkeypatch.setattr(transaction, "package_manager", lambda: apt)
    for step in ("fetch_packages", "transact", "purge", "make_requested_initramfs", "set_environment"):
        monkeypatch.setattr(apt, step, lambda *words, **_: ran.append(words))
    monkeypatch.setattr("sys.argv", ["transaction", json.dumps(order)])
    transaction.main()
    assert "no name of a package" in json.loads(capsys.readouterr().out)["failure"]["says"]
    assert [words for words in ran if words] == []


@pytest.mark.parametrize("word", ["-o", "a b", "a=1;x", "a\n", "", "a=", "--"])
def test_a_transaction_has_words_of_packages_only(word: str) -> None:
    assert apt.installation(["a", "g++:amd64=1:2~3^4+x", "a-"], 1, False)[-3:] == [
        "a",
        "g++:amd64=1:2~3^4+x",
        "a-",
    ]
    for manager in (apt, dnf):
        with pytest.raises(Failed, match="is no package"):
            manager.installation(["a", word], 1, False)


@pytest.mark.parametrize("stream", ["a:b\nremove c", "a", ":b", "-x:y"])
def test_a_stream_is_no_other_line_of_dnfs_shell(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnf, "without_open_keys", list)
    assert dnf.installation(["a"], 1, False, ["a:", "nvidia-driver:580-open"]).lines[0] == "module reset a"
    with pytest.raises(Failed, match="is no module stream"):
        dnf.installation(["a"], 1, False, [stream])


REASON = """\
dpkg: error processing package openssh-server (--configure):
 installed openssh-server package post-installation script subprocess returned error exit status 127
Errors were encountered while processing:
 openssh-server
"""
SAID = (
    "dpkg: error processing package openssh-server (--configure): installed openssh-server package"
    " post-installation script subprocess returned error exit status 127"
)


def test_the_reason_of_dpkg_is_in_the_words_about_half_installed_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dependencies = script("preflight", "dependencies")
    stderr = f"{REASON}E: Sub-process /usr/bin/dpkg returned an error code (1)\n"

    def fail(*_: object) -> None:
        raise apt.Failed("unused", 100, stderr)

    monkeypatch.setattr(dependencies.apt, "refuse_removals", fail)
    monkeypatch.setattr(dependencies.apt, "set_environment", lambda: None)
    asked = {"packages": {}, "lost": [], "unconfigured": REASON}
    monkeypatch.setattr(dependencies.sys, "argv", ["dependencies.py", json.dumps(asked)])
    dependencies.main()
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert failure["says"] == f"{SAID} Sub-process /usr/bin/dpkg returned an error code (1)"


def test_every_line_of_dpkg_about_a_missing_dependency_is_in_its_words() -> None:
    problems = "dpkg: dependency problems prevent configuration of a:"
    said = f"{problems}\n a depends on b; however:\n  b is not there.\n"
    assert apt.errors_of(said) == f"{problems} a depends on b; however: b is not there."
    assert apt.errors_of("Error! Bad return status\nok\n") == "Error! Bad return status"


def test_messages_of_packages_are_kept_where_users_cannot_fill_the_disk(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """dpkg and scripts of packages fail when their standard error has no room."""
    apt.call("readlink", "/proc/self/fd/2")
    assert capfd.readouterr().out.startswith("/memfd:")


@pytest.mark.parametrize(
    ("error", "unconfigured"),
    [
        (None, ""),
        (apt.Failed("unused", 1, REASON), REASON),
        (apt.Failed("dpkg exited with 2", 2, ""), "dpkg exited with 2"),
        (OSError(errno.ENOSPC, "No space left on device"), "dpkg: [Errno 28] No space left on device"),
    ],
)
def test_what_dpkg_cannot_configure_is_kept_for_apt(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
    unconfigured: str,
) -> None:
    configure = script("preflight", "configure")

    def call(*words: str) -> None:
        assert words[:2] == ("dpkg", "--configure")
        if error:
            raise error

    monkeypatch.setattr(configure.apt, "call", call)
    monkeypatch.setattr(configure.apt, "set_environment", lambda: None)
    configure.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"changed": True, "failure": None, "unconfigured": unconfigured}
