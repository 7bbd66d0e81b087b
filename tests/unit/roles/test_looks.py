"""Parsing of programs' output and of files by the scripts that roles run on a node."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpuprov_devices
import gpuprov_node
import gpuprov_repos
import gpuprov_sshd
import pytest
import yaml

from gpuprov.probe.node import sshd as node_sshd
from gpuprov.roles.firewall import BESIDE
from gpuprov.roles.manager import OWN_FILES
from gpuprov.roles.repositories import GENERATED, KEY_FILE, RELEASE_PACKAGES, UNSIGNED_PACKAGES
from tests import ROOT
from tests.unit.roles.scripts import script

driver, preflight, settings = script("nvidia_driver"), script("preflight"), script("gpu_settings")
docker, repositories = script("docker"), script("repositories")
tuning = script("system_tuning")


@pytest.fixture
def sshd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script of ssh_hardening, which examines the machine when it is loaded."""
    monkeypatch.setattr("sys.argv", ["look.py", '{"options": {}, "login": "root"}'])
    return script("ssh_hardening")


@pytest.mark.parametrize(
    ("path", "before"),
    [
        ("/etc/ssh/sshd_config", False),
        ("/etc/ssh/sshd_config.d/00-a-site.conf", True),
        ("/etc/ssh/sshd_config.d/00-gpuprov.conf", False),
        ("/etc/ssh/sshd_config.d/50-cloud-init.conf", False),
    ],
)
def test_only_a_drop_in_with_an_earlier_name_goes_before_ours(sshd: Any, path: str, before: bool) -> None:
    assert sshd.goes_before(Path(path)) is before


@pytest.mark.parametrize(
    ("inode", "listed", "taken"),
    [
        (7, (0, ""), {}),
        (8, (0, ""), {}),
        (9, (0, 'users:(("sshd",pid=77,fd=3))'), {"2222": "sshd"}),
        (9, (124, ""), {"2222": "a program"}),
        (9, (0, ""), {}),
    ],
)
def test_a_port_is_in_use_unless_root_s_sshd_or_systemd_has_its_socket(
    sshd: Any, monkeypatch: pytest.MonkeyPatch, inode: int, listed: tuple[int, str], taken: dict[str, str]
) -> None:
    """Refuse also a port of a user's program that is named sshd."""
    listener = gpuprov_sshd.Listener(5, 1, "sshd", ("22",), True)
    monkeypatch.setattr(gpuprov_sshd, "listeners", lambda: [listener])
    monkeypatch.setattr(gpuprov_sshd, "sockets_of", {1: {"8"}, 5: {"7"}}.__getitem__)
    monkeypatch.setattr(sshd, "options", {"port": "22 2222"})
    monkeypatch.setattr(gpuprov_sshd, "output", lambda *_argv: f"LISTEN 0 9 *:2222 *:* ino:{inode} sk:1\n")
    monkeypatch.setattr(sshd, "run", lambda *_command, **_named: listed)
    assert sshd.taken() == taken


def test_groups_are_found_in_a_directory_that_does_not_list_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getgrouplist", lambda name, number: [number, 70001, 70002])
    names = {0: "root", 70001: "admins"}
    monkeypatch.setattr("grp.getgrgid", lambda number: SimpleNamespace(gr_name=names[number]))
    monkeypatch.setattr("grp.getgrall", list)
    assert gpuprov_sshd.groups_of("root") == ["admins", "root"]
    assert node_sshd.login_groups({"login": "root"}) == ["admins", "root"]
    assert node_sshd.login_groups({"login": "gpuprov-unknown"}) == []


def test_the_first_line_on_an_option_of_sshd(
    sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, drop_in = tmp_path / "sshd_config", tmp_path / "sshd_config.d/00-a.conf"
    drop_in.parent.mkdir()
    config.write_text("Include x\nPasswordAuthentication no\nX11Forwarding yes\n")
    drop_in.write_text("# ours\n  passwordauthentication yes\n")
    monkeypatch.setattr(sshd, "CONFIG", config)
    first = sshd.first_lines()
    assert first["passwordauthentication"] == (drop_in, 2, "passwordauthentication yes")
    assert first["x11forwarding"] == (config, 3, "X11Forwarding yes")


def test_a_line_of_an_included_file_has_its_own_place(
    sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RHEL's 50-redhat.conf includes the crypto policy; an earlier drop-in that does overrides the role's."""
    config, policy = tmp_path / "sshd_config", tmp_path / "opensshserver.config"
    earlier, later = (tmp_path / "sshd_config.d" / name for name in ("00-a.conf", "50-redhat.conf"))
    earlier.parent.mkdir()
    config.write_text("Include /etc/ssh/sshd_config.d/*.conf\n")
    policy.write_text("Ciphers aes256-ctr\nMACs hmac-sha2-256\n")
    monkeypatch.setattr(sshd, "CONFIG", config)
    monkeypatch.setattr(sshd, "OURS", tmp_path / "sshd_config.d/00-gpuprov.conf")
    monkeypatch.setattr(sshd, "EARLIER", {})
    for drop_in, before in ((earlier, True), (later, False)):
        drop_in.write_text(f"MACs hmac-sha2-512\nInclude {policy}\nInclude {policy}\nUsePAM yes\n")
        first = sshd.first_lines()
        assert first["ciphers"] == (policy, 1, "Ciphers aes256-ctr")
        assert first["macs"] == (drop_in, 1, "MACs hmac-sha2-512")
        assert sshd.goes_before(policy) is before
        drop_in.unlink()
        sshd.EARLIER.clear()


HEAD_3_0 = "DKMS make.log for nvidia-current-open-550.163.01 for kernel 6.12.117+deb13-amd64 (x86_64)"
HEAD_3_2 = (
    "DKMS (dkms-3.2.2) make.log for nvidia-current-open/550.163.01 for kernel 6.12.117+deb13-amd64 (x86_64)"
)
ERROR = "nv-pci.c:199:9: error: too few arguments to function 'pci_resize_resource'"


@pytest.mark.parametrize("head", [HEAD_3_0, HEAD_3_2])
def test_a_failed_build_is_the_compilers_first_error(head: str) -> None:
    log = f"{head}\n  gcc -Werror=date-time x.c\n/var/lib/dkms/build/{ERROR}\nnv.c:1:1: error: another\n"
    assert driver.failed_build(log) == {
        "version": "550.163.01",
        "kernel": "6.12.117+deb13-amd64",
        "error": ERROR,
    }


def test_a_build_that_worked_did_not_fail() -> None:
    assert driver.failed_build(f"{HEAD_3_2}\n CONFTEST: dma_fence_set_error\n# exit code: 0\n") is None


def test_kernels_that_dkms_installed_a_module_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "nvidia-current/535.309.01, 6.1.0-56-amd64, x86_64: installed (original_module exists)\n"
        "nvidia-current/535.309.01, 6.1.0-57-amd64, x86_64: built\n"
        "nvidia, 470.256.02, 5.4.0-200-generic, x86_64: installed\n"
        "zfs/2.1.11, 6.1.0-58-amd64, x86_64: installed\n"
    )
    monkeypatch.setattr(driver, "output", lambda *_, preexec_fn, **__: said if preexec_fn else "")
    assert driver.dkms_installed() == {"6.1.0-56-amd64", "5.4.0-200-generic"}


@pytest.mark.parametrize(
    ("licence", "flavour"), [("NVIDIA\n", "proprietary"), ("Dual MIT/GPL\n", "open")], ids=["NVIDIA", "MIT"]
)
def test_a_module_on_disk_is_known_by_version_and_flavour(
    monkeypatch: pytest.MonkeyPatch, licence: str, flavour: str
) -> None:
    said = {("version", "nvidia"): "535.1\n", ("license", "nvidia"): licence}
    monkeypatch.setattr(driver, "output", lambda *argv: said.get(argv[-2:], ""))
    assert driver.module("6.1.0", ["nvidia-current", "nvidia"]) == ("535.1", flavour)
    assert driver.module("6.1.0", ["nvidia-current"]) == (None, None)


@pytest.mark.parametrize(
    ("dkms", "on_disk", "compiled", "unbuilt"),
    [
        ({"6.1", "6.2"}, ("535.1", "open"), True, []),
        ({"6.1"}, ("535.1", "open"), True, ["6.2"]),
        ({"6.1"}, ("535.1", "open"), False, []),
        ({"6.1", "6.2"}, ("535.1", "proprietary"), True, ["6.1", "6.2"]),
        ({"6.1", "6.2"}, ("530.1", "open"), False, ["6.1", "6.2"]),
    ],
)
def test_kernels_that_lack_the_module(
    monkeypatch: pytest.MonkeyPatch, dkms: set[str], on_disk: Any, compiled: bool, unbuilt: list[str]
) -> None:
    asked = {"version": "535.1", "flavour": "open", "modules": ["nvidia"], "compiled": compiled}
    monkeypatch.setattr(driver, "dkms_installed", lambda: dkms)
    monkeypatch.setattr(driver, "module", lambda *_: on_disk)
    assert driver.unbuilt(["6.1", "6.2"], asked, {}) == unbuilt


@pytest.mark.parametrize("place", driver.DKMS_PLACES)
def test_a_module_that_was_installed_in_part_is_not_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    """Have modules of the version, one of another version, and one that DKMS has not built."""
    asked: list[str] = []

    def modinfo(*argv: str) -> tuple[int, str]:
        asked[:] = argv[3:]
        return int(any(not Path(path).read_bytes() for path in asked)), ""

    monkeypatch.setattr(driver, "run", modinfo)
    assert driver.is_whole("6.1", "535.1", str(tmp_path)), "a module from a package"
    for source in ("nvidia/535.1", "nvidia-fs/2.20"):
        built = tmp_path / "var/lib/dkms" / source / "6.1/x86_64/module"
        built.mkdir(parents=True)
        for name in ("", "-uvm"):
            (built / f"{source.partition('/')[0]}{name}.ko").write_bytes(b"module")
    folder = tmp_path / "lib/modules/6.1" / place
    folder.mkdir(parents=True)
    for name in ("nvidia.ko", "nvidia-uvm.ko", "nvidia-fs.ko", "nvidia-peermem.ko"):
        (folder / name).write_bytes(b"module" if name.startswith(("nvidia.", "nvidia-uvm")) else b"")
    assert driver.is_whole("6.1", "535.1", str(tmp_path))
    assert sorted(asked) == [str(folder / "nvidia-uvm.ko"), str(folder / "nvidia.ko")]
    (folder / "nvidia-uvm.ko").write_bytes(b"")
    assert not driver.is_whole("6.1", "535.1", str(tmp_path))
    (folder / "nvidia-uvm.ko").unlink()
    assert not driver.is_whole("6.1", "535.1", str(tmp_path))
    monkeypatch.setattr(driver, "dkms_installed", lambda: {"6.1"})
    monkeypatch.setattr(driver, "module", lambda *_: ("535.1", "open"))
    monkeypatch.setattr(driver, "is_whole", lambda *_: False)
    stated = {"version": "535.1", "flavour": "open", "modules": ["nvidia"], "compiled": True}
    assert driver.unbuilt(["6.1"], stated, {}) == ["6.1"]


BUILD = {"version": "580.1", "kernel": "6.1", "error": "nv.c:7: error: no such thing"}
DKMS = "dkms install nvidia/580.1 -k 6.1 exited with 10: Error! Bad return status"
DPKG = "NVIDIA driver 580.1 could not be installed: Sub-process /usr/bin/dpkg returned an error code (1)"


@pytest.mark.parametrize(
    ("failed", "builds", "says"),
    [
        (DKMS, [BUILD], "does not build for kernel 6.1: nv.c:7: error: no such thing; lock a driver that"),
        (DPKG, [BUILD], "does not build for kernel 6.1: nv.c:7: error: no such thing; lock a driver that"),
        (DKMS, [], f"could not be installed: {DKMS}"),
        (DKMS, [{**BUILD, "kernel": "6.2"}], f"could not be installed: {DKMS}"),
        (DPKG, [{**BUILD, "version": "570.1"}], "could not be installed: Sub-process"),
        ("no module 580.1 on disk", [BUILD], "could not be installed: no module 580.1 on disk"),
    ],
)
def test_why_there_is_no_driver(failed: str, builds: list[dict[str, str]], says: str) -> None:
    said = driver.reason(failed, "580.1", ["6.1"], builds)
    assert said.removeprefix("NVIDIA driver 580.1 ").startswith(says)


def test_the_way_back_is_what_differs() -> None:
    """Check apt's arguments that restore the earlier packages: only those that changed."""
    before = {"libc6": "1", "libcuda1": "570.1", "nvidia-smi": "570.1"}
    now = {"libc6": "1", "libcuda1": "580.1", "libcuda1:i386": "580.1"}
    words = script("nvidia_driver", "restore").words(now, before)
    assert words == ["libcuda1:i386-", "libcuda1=570.1", "nvidia-smi=570.1"]


def test_an_empty_record_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    restore = script("nvidia_driver", "restore")
    monkeypatch.setattr(restore, "present", lambda: {"libc6": "1"})
    monkeypatch.setattr(restore, "package_manager", lambda: None)
    with pytest.raises(restore.Failed, match="record of the former packages is empty"):
        restore.restore({"packages": {}, "left": [], "held": [], "streams": [], "lock_timeout": 1})


def test_packages_by_the_name_that_apt_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "ii \tlibc6:amd64\t2.36\nhi \tlibcuda1:amd64\t535.1\nii \tlibcuda1:i386\t535.1\n"
        "iF \tnvidia-kernel-dkms\t535.1\nrc \tnvidia-smi\t530.1\nun \tgone\t\n"
    )
    monkeypatch.setattr(gpuprov_node, "database", lambda *argv: "amd64\n" if argv[0] == "dpkg" else listed)
    assert [tuple(row) for row in gpuprov_node.packages()] == [
        ("i", "i", "libc6", "2.36"),
        ("h", "i", "libcuda1", "535.1"),
        ("i", "i", "libcuda1:i386", "535.1"),
        ("i", "F", "nvidia-kernel-dkms", "535.1"),
        ("r", "c", "nvidia-smi", "530.1"),
        ("u", "n", "gone", ""),
    ]
    assert gpuprov_node.installed() == {"libc6": "2.36", "libcuda1": "535.1", "libcuda1:i386": "535.1"}


DEB822 = """\
# a comment of its own

Types: deb
URIs: http://mirror/debian
Suites: bookworm
Signed-By: /usr/share/keyrings/a.gpg

Types: deb
URIs: http://mirror/security
Suites: bookworm-security
"""


@pytest.mark.parametrize(
    ("name", "text", "number", "key"),
    [
        ("x.sources", DEB822, 1, "/usr/share/keyrings/a.gpg"),
        ("x.sources", DEB822, 2, None),
        ("x.list", "\ndeb [arch=amd64 signed-by=/k.gpg] http://mirror/debian bookworm main\n", 2, "/k.gpg"),
        ("x.list", "deb http://mirror/debian bookworm main\n", 1, None),
    ],
)
def test_the_key_of_a_source(tmp_path: Path, name: str, text: str, number: int, key: str | None) -> None:
    (tmp_path / name).write_text(text)
    assert repositories.signed_by(f"{tmp_path / name}:{number}") == key


def test_the_key_of_a_source_with_a_comment_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.list"
    path.write_bytes(b"# Spiegel f\xfcr uns\ndeb [signed-by=/k.gpg] http://mirror/debian bookworm main\n")
    assert repositories.signed_by(f"{path}:2") == "/k.gpg"


def test_files_of_the_site_with_comments_that_are_not_utf8(tmp_path: Path) -> None:
    fstab = tmp_path / "etc/fstab"
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "boot/grub").mkdir(parents=True)
    fstab.write_bytes(
        b"# f\xfcr Jobs\nUUID=1 /scratch ext4 defaults,x-gpuprov 0 2\nUUID=2 /data xfs X-gpuprov 0 2\n"
    )
    (tmp_path / "etc/default/grub").write_bytes(b"# f\xfcr uns\nGRUB_DEFAULT=0\n")
    (tmp_path / "boot/grub/grub.cfg").write_bytes(b'menuentry "f\xfcr uns"\nset default="0"\n')
    assert script("storage").ours(fstab) == {"/scratch": "1", "/data": "2"}
    assert driver.defaults(str(tmp_path)) == ("0", "0")


def test_the_archive_is_the_distributions_without_what_we_added(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        "http://m/debian/ bookworm main /etc/apt/sources.list:1 Debian",
        "http://m/debian/ bookworm main /etc/apt/sources.list:1 Debian",
        "http://other/ bookworm main /etc/apt/sources.list.d/other.list:1 Other",
        "http://m/debian/ bookworm non-free /etc/apt/sources.list.d/gpuprov.sources:1 Debian",
    ]
    monkeypatch.setattr(repositories, "targets", lambda: [line.split() for line in said])
    monkeypatch.setattr(repositories, "signed_by", lambda _: None)
    assert repositories.archive("/etc/apt/sources.list.d/gpuprov.sources") == [
        {"uri": "http://m/debian/", "suite": "bookworm", "component": "main", "signed_by": None}
    ]


def test_keys_of_dnf_are_all_of_the_role_also_of_earlier_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpuprov-old.asc", "gpuprov-nvidia.asc", "RPM-GPG-KEY-site"):
        (tmp_path / name).touch()
    monkeypatch.setattr(repositories, "KEYS", tmp_path)
    monkeypatch.setattr(repositories.repos, "foreign", lambda *_: [])
    monkeypatch.setattr(repositories.repos, "offers", lambda *_, **__: [])
    found = [str(tmp_path / name) for name in ("gpuprov-nvidia.asc", "gpuprov-old.asc")]
    assert repositories.of_dnf("", [], [])["key_files"] == found


def test_files_of_others_that_name_our_repositories(tmp_path: Path) -> None:
    ours = "deb [signed-by=/k.gpg] http://cuda/repos/debian12/x86_64/ /\n"
    texts = {
        "cuda.list": ours,
        "mixed.list": f"{ours}deb http://other/ stable main\n",
        "other.list": "deb http://other/ stable main\n",
        "off.list": f"# {ours}",
        "cuda.sources": "Types: deb\nURIs: http://cuda/repos/debian12/x86_64\nSuites: /\n",
        "off.sources": "Types: deb\nURIs: http://cuda/repos/debian12/x86_64\nSuites: /\nEnabled: no\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    url = "http://cuda/repos/debian12/x86_64/"
    found = {
        Path(each["path"]).name: each["only_ours"] for each in repositories.foreign("", [url], [tmp_path])
    }
    assert found == {"cuda.list": True, "cuda.sources": True, "mixed.list": False}


POLICY_OF_SOURCES = """\
Package files:
 100 /var/lib/dpkg/status
     release a=now
 600 http://cuda/repos/debian12/x86_64  Packages
     release o=NVIDIA,l=NVIDIA CUDA,c=
     origin cuda
 500 http://mirror/debian bookworm/non-free amd64 Packages
     release v=12.11,o=Debian,a=oldstable,n=bookworm,l=Debian,c=non-free,b=amd64
     origin mirror
"""
FROM_NVIDIA = """\
nvidia-smi:
  Installed: 580.1-1
  Candidate: 580.1-1
  Version table:
 *** 580.1-1 600
        600 http://cuda/repos/debian12/x86_64  Packages
        100 /var/lib/dpkg/status
     535.309.01-1 500
        500 http://mirror/debian bookworm/non-free amd64 Packages
"""
FROM_DEBIAN = """\
nvidia-smi:
  Installed: 535.309.01-1
  Candidate: 535.309.01-1
  Version table:
 *** 535.309.01-1 500
        500 http://mirror/debian bookworm/non-free amd64 Packages
        100 /var/lib/dpkg/status
"""
OF_NO_REPOSITORY = """\
nvidia-smi:
  Installed: 535.100.01-1
  Candidate: 535.309.01-1
  Version table:
     535.309.01-1 500
        500 http://mirror/debian bookworm/non-free amd64 Packages
 *** 535.100.01-1 100
        100 /var/lib/dpkg/status
"""


@pytest.mark.parametrize(
    ("policy", "sources", "foreign"),
    [
        (FROM_NVIDIA, [None], {"nvidia-smi": "http://cuda/repos/debian12/x86_64"}),
        (FROM_NVIDIA, ["http://cuda/repos/debian12/x86_64/"], {}),
        (FROM_DEBIAN, [None], {}),
        (FROM_DEBIAN, ["http://cuda/"], {"nvidia-smi": "http://mirror/debian"}),
        (OF_NO_REPOSITORY, [None], {}),
    ],
)
def test_packages_of_another_repository(
    monkeypatch: pytest.MonkeyPatch, policy: str, sources: list[Any], foreign: dict[str, str]
) -> None:
    def run(*argv: str, **_: Any) -> tuple[int, str]:
        """Answer as dpkg-query and apt-cache."""
        if argv[0] == "dpkg-query":
            return 0, "ii  nvidia-smi\nii  libc6\nrc  nvidia-driver\n"
        return 0, policy if argv[2:] else POLICY_OF_SOURCES

    monkeypatch.setattr(gpuprov_node, "run", run)
    assert preflight.foreign_packages("nvidia-(smi|driver)", sources) == foreign


def test_a_process_of_a_user_can_have_any_name() -> None:
    rename = (
        "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\xfejob', 0, 0, 0); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", rename], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        assert preflight.program(str(process.pid)) == "\ufffd\ufffdjob"
        process.kill()


SCRIPTS = sorted([*ROOT.glob("roles/*/files/*.py"), *ROOT.glob("plugins/module_utils/*.py")])


@pytest.mark.parametrize("path", SCRIPTS, ids=[f"{path.parts[-3]}/{path.name}" for path in SCRIPTS])
def test_what_a_program_prints_need_not_be_utf8(path: Path) -> None:
    """Reject strict decoding of output and of /proc: users choose names of processes."""
    for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
        words = {each.arg: ast.unparse(each.value) for each in call.keywords}
        called = ast.unparse(call.func)
        decoded = "subprocess" in called and words.keys() & {"text", "universal_newlines", "encoding"}
        if decoded or (called.endswith(".read_text") and "/proc/{" in called):
            assert words.get("errors") == "'replace'", f"line {call.lineno}: {ast.unparse(call)}"


def test_a_folder_that_is_too_full_is_one_that_has_less_than_wanted(tmp_path: Path) -> None:
    folder = str(tmp_path / "not" / "there" / "yet")
    assert preflight.too_full({folder: 0}) == {}
    assert set(preflight.too_full({folder: 10**9})) == {folder}


@pytest.mark.parametrize(
    ("said", "now"),
    [
        ("0 application 1980 3201\n", ["application 1200 3201"]),
        ("0 locked 1980 default\n", ["locked 1980 default"]),
        ("0 unsupported\n", ["unsupported"]),
        ("", ["unset"]),
    ],
)
def test_clocks_are_the_drivers_word_where_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, now: list[str]
) -> None:
    (tmp_path / "outcome").write_text(said)
    monkeypatch.setattr(settings, "OUTCOME", tmp_path / "outcome")
    assert settings.clocks([["Enabled", "1200", "3201"]]) == now


def test_ubuntus_daemon_is_seen_as_one_that_cannot_be_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = "[Service]\nExecStart=/usr/bin/nvidia-persistenced --no-persistence-mode\n"
    (tmp_path / "nvidia-persistenced.service").write_text(unit)
    monkeypatch.setattr(settings, "UNIT_FOLDERS", (str(tmp_path),))
    assert settings.daemon() == {
        "command": "/usr/bin/nvidia-persistenced --no-persistence-mode",
        "installs": False,
    }


SITES_OWN = {"log-driver": "local", "exec-opts": ["a=b"], "runtimes": {"crun": {"path": "/usr/bin/crun"}}}
RUNTIME = {"nvidia": {"path": "nvidia-container-runtime"}}
BOTH_RUNTIMES = {"crun": {"path": "/usr/bin/crun"}, **RUNTIME}


@pytest.mark.parametrize(
    ("document", "wanted", "ours", "merged"),
    [
        ({}, {"default-shm-size": "1g"}, {}, {"default-shm-size": "1g"}),
        (SITES_OWN, {}, {}, SITES_OWN),
        (
            SITES_OWN,
            {"runtimes": RUNTIME, "exec-opts": ["native.cgroupdriver=systemd"]},
            {},
            {
                "log-driver": "local",
                "exec-opts": ["a=b", "native.cgroupdriver=systemd"],
                "runtimes": BOTH_RUNTIMES,
            },
        ),
        (
            {"exec-opts": ["native.cgroupdriver=cgroupfs", "a=b"]},
            {"exec-opts": ["native.cgroupdriver=systemd"]},
            {},
            {"exec-opts": ["a=b", "native.cgroupdriver=systemd"]},
        ),
        (
            {**SITES_OWN, "runtimes": BOTH_RUNTIMES, "default-shm-size": "1g"},
            {},
            {"runtimes": RUNTIME, "default-shm-size": "1g"},
            SITES_OWN,
        ),
        ({"runtimes": RUNTIME, "exec-opts": ["x=y"]}, {}, {"runtimes": RUNTIME, "exec-opts": ["x=y"]}, {}),
        ({"default-shm-size": "4g"}, {}, {"default-shm-size": "1g"}, {"default-shm-size": "4g"}),
        ({"runtimes": "nonsense"}, {"runtimes": RUNTIME}, {}, {"runtimes": RUNTIME}),
    ],
    ids=["new", "untouched", "beside", "replaced", "gone", "gone-whole", "changed-by-the-site", "other-kind"],
)
def test_daemon_configuration_is_merged(document: Any, wanted: Any, ours: Any, merged: Any) -> None:
    assert docker.merge(document, wanted, ours) == merged
    assert docker.merge(merged, wanted, wanted) == merged


MEMLOCK = {"Name": "memlock", "Hard": 4096, "Soft": 4096}
NOFILE = {"Name": "nofile", "Hard": 65536, "Soft": 32768}


@pytest.mark.parametrize(
    ("limits", "options", "written", "left"),
    [
        ({}, 'OPTIONS="--default-ulimit nofile=32768:65536"\n', {"nofile": NOFILE}, 'OPTIONS=""\n'),
        (
            {},
            'A=1\nOPTIONS="--ip-forward=true --default-ulimit=nofile=32768:65536 --debug"\n',
            {"nofile": NOFILE},
            'A=1\nOPTIONS="--ip-forward=true --debug"\n',
        ),
        (
            {"nofile": {**NOFILE, "Soft": 1024}},
            'OPTIONS="--default-ulimit nofile=9"\n',
            {"nofile": {**NOFILE, "Soft": 1024}},
            'OPTIONS=""\n',
        ),
        ({}, 'OPTIONS="--debug"\n', {}, None),
        ({}, '#OPTIONS="--default-ulimit nofile=9:9"\n ; --default-ulimit=nofile=8\n', {}, None),
        (
            {},
            '# --default-ulimit nofile=9\nOPTIONS="--default-ulimit core=1"\n',
            {"core": {"Name": "core", "Hard": 1, "Soft": 1}},
            '# --default-ulimit nofile=9\nOPTIONS=""\n',
        ),
        ({}, None, {}, None),
    ],
    ids=[
        "Amazon's",
        "with others",
        "another value in daemon.json",
        "no limit",
        "comments",
        "one and a comment",
        "no file",
    ],
)
def test_limits_of_dockerds_options_move_to_daemon_json(
    limits: dict[str, Any], options: str | None, written: dict[str, Any], left: str | None
) -> None:
    """Do so only if daemon.json has limits: dockerd takes them from one place."""
    wanted = {"default-ulimits": {"memlock": MEMLOCK}}
    document = {"default-ulimits": {"memlock": MEMLOCK, **limits}}
    expected = {"default-ulimits": {"memlock": MEMLOCK, **written, **limits}}
    assert docker.moved(wanted, document, options) == (expected, left)
    assert docker.moved({}, {}, options) == ({}, None)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (None, None),
        (" \n", None),
        ("{}", None),
        ('{\n "a": 1,\n b}', "line 3, column 2: "),
        ("[]", "line 1, column 1: not an object"),
    ],
)
def test_broken_daemon_configuration_is_reported_with_its_place(text: str | None, broken: str | None) -> None:
    document, said = docker.read(text)
    assert document == {}
    assert said is None if broken is None else said.startswith(broken)


BLANK = b"\0" * (3 * 1024 * 1024)


@pytest.mark.parametrize(
    ("content", "empty"),
    [
        (BLANK, True),
        (b"", True),
        (b"x" + BLANK, False),
        (BLANK + b"x", False),
        (b"\0" * 512 + b"precious" + BLANK, False),
    ],
    ids=["zeros", "nothing", "first-byte", "last-byte", "old-data"],
)
def test_a_device_is_empty_where_its_ends_are_zeros(tmp_path: Path, content: bytes, empty: bool) -> None:
    device = tmp_path / "device"
    device.write_bytes(content)
    assert gpuprov_devices.empty(str(device)) is empty


@pytest.mark.parametrize(
    ("found", "used", "result"),
    [
        (None, [], (None, None)),
        ({"TYPE": "ext4", "LABEL": "gpuprov", "UUID": "u"}, ["/scratch"], (None, "u")),
        ({"TYPE": "xfs", "LABEL": "gpuprov", "UUID": "u"}, [], ("there is xfs labelled gpuprov on D", None)),
        ({"TYPE": "ext4", "LABEL": "home", "UUID": "u"}, [], ("there is ext4 labelled home on D", None)),
        ({"PTTYPE": "gpt"}, [], ("there is gpt on D", None)),
        ({"TYPE": "LVM2_member"}, [], ("there is LVM2_member on D", None)),
        ({}, [], ("there is something on D", None)),
        (None, ["D1", "/mnt"], ("D is in use by D1, /mnt", None)),
    ],
)
def test_only_an_empty_device_or_our_own_is_not_objected_to(
    monkeypatch: pytest.MonkeyPatch, found: Any, used: list[str], result: Any
) -> None:
    monkeypatch.setattr(gpuprov_devices, "signature", lambda _: found)
    monkeypatch.setattr(gpuprov_devices, "uses_of", lambda _: used)
    monkeypatch.setattr(gpuprov_devices, "empty", lambda _: True)
    assert gpuprov_devices.format_objection("D", "ext4") == result


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of an unused device D in sysfs, which has neither a signature nor data."""
    monkeypatch.setattr(gpuprov_devices, "SYSFS", str(tmp_path))
    monkeypatch.setattr(gpuprov_devices, "signature", lambda _: None)
    monkeypatch.setattr(gpuprov_devices, "empty", lambda _: True)
    (tmp_path / "D/holders").mkdir(parents=True)
    return tmp_path / "D"


def findmnt(monkeypatch: pytest.MonkeyPatch, everything: tuple[int, str], device: tuple[int, str]) -> None:
    """Set the answers of findmnt for all mounts, and for /dev/D."""

    def run(*argv: str, seconds: float = 60) -> tuple[int, str]:
        assert argv[0] == "findmnt"
        return device if argv[-1] == "/dev/D" else everything

    monkeypatch.setattr(gpuprov_devices, "run", run)


def test_a_device_in_use_is_not_formatted(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findmnt(monkeypatch, (0, "/\n/data\n"), (1, ""))
    assert gpuprov_devices.format_objection("/dev/D", "ext4") == (None, None)
    findmnt(monkeypatch, (0, "/\n/data\n"), (0, "/data\n"))
    assert gpuprov_devices.format_objection("/dev/D", "ext4") == ("/dev/D is in use by /data", None)
    (disk / "D1").mkdir()
    (disk / "D1/partition").touch()
    (disk / "holders/dm-0").touch()
    assert gpuprov_devices.format_objection("/dev/D", "ext4")[0] == "/dev/D is in use by D1, dm-0, /data"


@pytest.mark.parametrize("answer", [(127, ""), (124, ""), (1, ""), (1, "/\n"), (0, ""), (-9, "/\n")])
def test_what_findmnt_does_not_list_is_not_taken_as_unmounted(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str]
) -> None:
    findmnt(monkeypatch, answer, (1, ""))
    reason, uuid = gpuprov_devices.format_objection("/dev/D", "ext4")
    assert str(reason).startswith("it is not known whether /dev/D is in use: findmnt ")
    assert uuid is None
    findmnt(monkeypatch, (0, "/\n"), (124, ""))
    assert gpuprov_devices.format_objection("/dev/D", "ext4")[0].endswith(" /dev/D exited with 124")
    findmnt(monkeypatch, answer, (1, ""))
    mount = str(tmp_path / "scratch")
    monkeypatch.setattr(gpuprov_devices, "open_folder", lambda _: None)
    said = f"it is not known what is mounted below {mount}: findmnt "
    assert str(gpuprov_devices.mount_objection(mount)).startswith(said)


def test_mounts_of_users_count_for_nothing(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_devices, "open_folder", lambda _: None)
    mount = tmp_path / "scratch"
    root = "/ ext4 rw\n"
    for kind, options, counts in (
        ("fuse", "rw,user_id=1000,group_id=0", False),
        ("fuse.job", "rw,nosuid,nodev,user_id=1000,group_id=1000", False),
        ("fuseblk", "rw,user_id=0,group_id=0", True),
        ("fuse.sshfs", "rw,user_id=0,group_id=0,allow_other", True),
        ("xfs", "rw,user_id=1000", True),
    ):
        users = f"{mount}/x {kind} {options}\n"
        findmnt(monkeypatch, (0, root + users), (0, users))
        found = f"/dev/D is in use by {mount}/x" if counts else None
        assert gpuprov_devices.format_objection("/dev/D", "ext4") == (found, None)
        below = f"below {mount}, {mount}/x is mounted" if counts else None
        assert gpuprov_devices.mount_objection(str(mount)) == below


def test_a_device_that_the_kernel_does_not_list_is_not_formatted(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    findmnt(monkeypatch, (0, "/\n"), (1, ""))
    said = f"it is not known whether /dev/other is in use: {disk.parent}/other does not exist"
    assert gpuprov_devices.format_objection("/dev/other", "ext4") == (said, None)


@pytest.mark.parametrize("taken", ["/", "/home", "/var", "/usr", "/etc", "/root", "/boot", "/opt", "/srv"])
def test_nothing_is_mounted_over_what_a_system_needs(taken: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(taken)
    for mount in (taken, str(tmp_path / "link"), f"/x/..{taken}"):
        assert str(gpuprov_devices.mount_objection(mount)).startswith(f"{mount} has ")


def test_nothing_is_mounted_where_users_can_replace_folders(tmp_path: Path) -> None:
    place = tmp_path / "a/b/scratch"
    place.mkdir(parents=True)
    for folder, mode, found in (
        (tmp_path / "a", 0o755, None),
        (tmp_path / "a/b", 0o1777, str(tmp_path / "a/b")),
        (tmp_path / "a", 0o775, str(tmp_path / "a")),
        (place, 0o777, str(tmp_path / "a")),
    ):
        folder.chmod(mode)
        assert gpuprov_devices.open_folder(str(place), str(tmp_path)) == found
    assert gpuprov_devices.open_folder("/usr/lib/none/scratch") is None
    (tmp_path / "link").symlink_to("/usr/lib")
    said = f"{tmp_path}/link/none leads through a link to /usr/lib/none"
    assert gpuprov_devices.mount_objection(f"{tmp_path}/link/none") == said
    assert gpuprov_devices.mount_objection("/tmp/scratch") == (
        "users can write to /tmp, and replace what is below it"
    )
    look = script("storage")
    assert look.nested("/scratch/fast", ["/scratch", "/scratch/fast"]) == (
        "/scratch/fast is below /scratch, to which all users can write"
    )
    assert look.nested("/scratch2", ["/scratch", "/scratch2"]) is None


def test_nothing_is_mounted_over_files_or_other_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_devices, "open_folder", lambda _: None)
    place = tmp_path / "scratch"
    monkeypatch.setattr(gpuprov_devices, "mounts", lambda: ["/", f"{tmp_path}/scratching"])
    assert gpuprov_devices.mount_objection(str(place)) is None
    place.mkdir()
    assert gpuprov_devices.mount_objection(str(place)) is None
    for name in "cabd":
        (place / name).touch()
    assert gpuprov_devices.mount_objection(str(place)) == f"{place} is not empty: a, b, c and 1 more"
    assert gpuprov_devices.mount_objection(str(place / "a")) == f"{place}/a is not a folder"
    monkeypatch.setattr(gpuprov_devices, "mounts", lambda: ["/", f"{place}/jobs"])
    assert gpuprov_devices.mount_objection(str(place)) == f"below {place}, {place}/jobs is mounted"


def test_package_of_ours_that_somebody_took_away_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cudnn").write_text("libcudnn9-cuda-12\nlibcudnn9-headers-cuda-12\n")
    (tmp_path / "nccl").write_text("libnccl2\n")
    rows = "installed libcudnn9-cuda-12\nconfig-files libcudnn9-headers-cuda-12\ninstalled libnccl2\n"
    monkeypatch.setattr(preflight, "RECORDS", tmp_path)
    monkeypatch.setattr(gpuprov_node, "run", lambda *_, **_limit: (0, rows))
    assert preflight.lost() == ["libcudnn9-headers-cuda-12"]


def test_limit_that_a_login_came_without_can_still_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a limit above that of the login if the service that started the login has a higher one."""
    has = {"us": 4096, "service": 20000}
    monkeypatch.setattr(tuning, "service", lambda: "service")
    monkeypatch.setattr(tuning.resource, "prlimit", lambda who, _: (0, has[who]))
    monkeypatch.setattr(tuning.os, "fork", lambda: 1)
    monkeypatch.setattr(tuning.os, "waitpid", lambda *_: (1, 256))
    assert tuning.settable("nofile", 16384)
    assert not tuning.settable("nofile", 30000)
    assert not tuning.settable("memlock", "unlimited")


def test_limit_that_the_kernel_refuses_is_found_by_trying() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    assert tuning.settable("nofile", 1024)
    assert not tuning.settable("nofile", most + 1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.mark.parametrize("pid", ["", "0", "4194305"])
def test_a_daemon_that_ended_meanwhile_has_not_started(monkeypatch: pytest.MonkeyPatch, pid: str) -> None:
    """Treat such a process id as not started; 4194305 is above the maximum in proc(5), kernel/pid_max."""
    monkeypatch.setattr(gpuprov_node, "output", lambda *_: pid + "\n")
    assert gpuprov_node.started("docker.service") is None


ARMORED = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmQINBGA\nAAB=\n-----END PGP PUBLIC KEY BLOCK-----\n"


def test_a_moved_repository_has_the_key_of_the_lock(tmp_path: Path) -> None:
    """Return former addresses with one of the lock's keys, which deb822 indents."""
    ours = tmp_path / "gpuprov.sources"
    assert preflight.moved_repositories(str(ours), [ARMORED]) == []
    written = ARMORED.strip().replace("\n\n", "\n.\n").replace("\n", "\n ")
    ours.write_text(
        f"# Written by gpuprov\n\n# nvidia\nTypes: deb\nURIs: http://old/cuda/\nSigned-By: {written}\n\n"
        f"Types: deb\nURIs: http://old/other/\nSigned-By: {written.replace('mQ', 'xx')}\n\n"
        "Types: deb\nURIs: http://old/unsigned/\nSuites: /\n"
    )
    assert preflight.moved_repositories(str(ours), [None, ARMORED]) == ["http://old/cuda/"]
    assert preflight.moved_repositories(str(ours), [None]) == []


def test_both_roles_know_the_same_file_of_sources() -> None:
    stated = [
        yaml.safe_load((ROOT / f"roles/{role}/vars/main.yml").read_text())
        for role in ("preflight", "repositories")
    ]
    forms = stated[1]["__repositories_forms"]
    assert stated[0]["__preflight_question"]["ours"] == forms["apt"]["file"]
    assert {name: form["file"] for name, form in forms.items()} == OWN_FILES
    assert stated[1]["__repositories_key_file"].replace("ID", "{}") == KEY_FILE
    assert tuple(stated[1]["__repositories_unsigned_packages"]) == UNSIGNED_PACKAGES
    assert gpuprov_repos.RELEASE_PACKAGES.pattern == RELEASE_PACKAGES + r"\Z"
    assert gpuprov_repos.GENERATED == GENERATED


@pytest.mark.parametrize(
    ("rules", "mistaken"),
    [
        (['iifname "br-*" accept'], ["br-ex", "br-lan", "br-mgmt"]),
        (['iifname != "br-ex" iifname != "br-lan" iifname "br-*" accept'], ["br-mgmt"]),
        ([], []),
    ],
)
def test_uplinks_that_rules_take_for_docker_s_networks_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rules: list[str], mistaken: list[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    asked = {"table": {"networks": {}, "chains": {"forward": []}}, "others": []}
    monkeypatch.setattr("sys.argv", ["look.py", json.dumps(asked)])
    firewall = script("firewall")
    monkeypatch.setattr(firewall, "INTERFACES", tmp_path)
    ports = {
        "br-lan": ["eth1", "veth1"],
        "br-mgmt": ["bond0"],
        "br-web": ["veth2"],
        "br-0123456789ab": ["vnet0"],
    }
    for name, each in {**ports, "br0": ["eth2"], "docker0": ["eth3"]}.items():
        (tmp_path / name / "brif").mkdir(parents=True)
        for port in each:
            (tmp_path / name / "brif" / port).touch()
    (tmp_path / "br-ex").mkdir()  # no bridge of the kernel's
    (tmp_path / "eth0").mkdir()
    assert firewall.mistaken({"forward": rules}) == mistaken
    assert firewall.mistaken({}) == []


def test_role_and_witnesses_know_the_same_firewalls() -> None:
    stated = yaml.safe_load((ROOT / "roles/firewall/vars/main.yml").read_text())
    assert tuple(stated["__firewall_others"]) == BESIDE


@pytest.mark.parametrize(
    ("row", "answers", "outdated"),
    [
        ({}, True, False),
        ({"versions": ["535.309.01"]}, True, False),
        ({"versions": ["550.54.14"]}, True, True),
        ({"missing": ["/dev/nvidia99"], "versions": ["535.309.01"]}, True, True),
        ({"missing": ["/dev/nvidia99"], "versions": ["535.309.01"]}, False, False),
        ({"gpus": 1}, True, True),
        ({"private": True}, True, True),
    ],
)
def test_a_specification_is_written_again_if_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    row: dict[str, Any],
    answers: bool,
    outdated: bool,
) -> None:
    toolkit = script("container_toolkit")
    loaded = tmp_path / "version"
    loaded.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.309.01  Release Build\n")
    monkeypatch.setattr(toolkit, "LOADED", loaded)
    monkeypatch.setattr(toolkit, "ANSWER", ("true" if answers else "false",))
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(toolkit, "DEVICES", tmp_path)
    whole = {"missing": [], "versions": [], "gpus": 2, "private": False, **row}
    monkeypatch.setattr(toolkit, "specifications", lambda: {toolkit.SPECIFICATION: whole})
    assert toolkit.outdated() is outdated
    monkeypatch.setattr(toolkit, "specifications", dict)
    assert not toolkit.outdated()


def test_a_daemon_json_that_is_not_utf_8_is_broken_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "daemon.json"
    monkeypatch.setattr(docker, "CONFIG", config)
    monkeypatch.setattr(docker, "OURS", tmp_path / "none")
    monkeypatch.setattr(docker, "READ_AT_START", (config,))
    monkeypatch.setattr(docker, "installed", dict)
    monkeypatch.setattr(docker, "started", lambda unit: None)
    monkeypatch.setattr(docker.containers, "of_docker", list)
    for content, broken in ((b'{"a": "r\xe9gion"}', "byte 9: not UTF-8"), (b'{"a": "r\xc3\xa9gion"}', None)):
        config.write_bytes(content)
        docker.main({})
        assert json.loads(capsys.readouterr().out)["broken"] == broken
