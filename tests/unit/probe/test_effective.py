"""Files that override one another, and package sources, as the probe on the node reads them."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from pathlib import Path

import gpuprov_sources
import pytest

from gpuprov.drift.judge import judge
from gpuprov.probe.facts import Facts
from gpuprov.probe.node import base, effective, logins, packages, system
from gpuprov.roles import Expectation

TRACE = """\
+gpuprov:/etc/profile:7: PATH=/usr/bin:/bin
++gpuprov:/etc/profile.d/gpuprov-cuda.sh:2: export CUDA_HOME=/usr/local/cuda
++gpuprov:/etc/profile.d/gpuprov-cuda.sh:5: PATH=/usr/local/cuda/bin:/usr/bin:/bin
+++gpuprov:/opt/site/env.sh:3: export A=1 CUDA_HOME=/opt/cuda
++gpuprov:/etc/profile.d/zz.sh:1: PATH=/opt/cuda/bin:/usr/local/cuda/bin:/usr/bin:/bin
+gpuprov:/root/.profile:4: PATH=/opt/cuda/bin:/usr/local/cuda/bin:/usr/bin:/bin:/root/bin
"""


def test_the_last_line_that_sets_a_variable_is_named() -> None:
    assert effective._set_at(TRACE, "CUDA_HOME") == "/opt/site/env.sh:3"
    assert effective._set_at(TRACE, "HOME") is None


def test_the_first_line_that_puts_a_folder_into_path_is_named() -> None:
    assert (
        effective._set_at(TRACE, "PATH", r"[^\n]*/opt/cuda/bin(?:[:'\"]|$)", first=True)
        == "/etc/profile.d/zz.sh:1"
    )


SHELLS = {"commands": "ssh", "terminals": "typed", "logins": "login", "unprivileged": "login"}


def test_each_kind_of_shell_has_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the real bash read files at places of the test; a guard at the end of one stops no other."""
    files = {
        "bash.bashrc": 'export NCCL_A=ssh\n[ -z "${PS1-}" ] && return\nexport NCCL_A=typed\n',
        "profile": "export NCCL_A=login LD_PRELOAD=/opt/libsite.so; echo welcome\n",
        "home/.bashrc": "export NCCL_B=2\n",
    }
    (tmp_path / "home").mkdir()
    script = effective.SHELLS.replace("/etc/bash.bashrc", f"{tmp_path}/bash.bashrc")
    script = script.replace("/etc/profile", f"{tmp_path}/profile").replace("~/", f"{tmp_path}/home/")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(effective, "SHELLS", script)
    monkeypatch.setattr(effective, "of_unprivileged", lambda given: None)
    found, nvcc = effective._read_shells(re.compile("NCCL_|LD_"))
    assert nvcc[0] is None or nvcc[0].endswith("/nvcc")
    assert {kind: given["NCCL_A"][0] for kind, given in found.items()} == SHELLS
    places = {kind: given["NCCL_A"][1].removeprefix(f"{tmp_path}/") for kind, given in found.items()}
    logins = dict.fromkeys(("logins", "unprivileged"), "profile:1")
    assert places == {"commands": "bash.bashrc:1", "terminals": "bash.bashrc:3", **logins}
    assert found["commands"]["NCCL_B"] == ("2", f"{tmp_path}/home/.bashrc:1")
    assert "NCCL_B" not in found["logins"]
    monkeypatch.setattr(effective, "_READ", [(found, nvcc)])
    monkeypatch.setattr(effective, "PRELOAD", str(tmp_path / "preload"))
    (tmp_path / "preload").write_text(f"{tmp_path}/libx.so /nowhere/liby.so\n")
    (tmp_path / "libx.so").write_text("x")
    monkeypatch.setattr(effective, "LIBRARY_FOLDERS", ())
    everybody = effective._everybody({"environment": "NCCL_"})
    libraries = effective._libraries(everybody)
    assert libraries[str(tmp_path / "libx.so")] == f"{tmp_path}/preload:1"
    assert set(effective._stated("LD_PRELOAD", everybody)) == {
        ("/opt/libsite.so", f"LD_PRELOAD in {tmp_path}/profile:1")
    }
    assert "/nowhere/liby.so" not in libraries


def test_values_of_files_that_only_root_reads_are_in_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"HF_TOKEN": "hf_x", "A=B": "1", "NUL": "\0", "PATH": "/opt/bin"}
    monkeypatch.setattr(effective, "_pam", lambda: {name: (value, "") for name, value in stated.items()})
    seen = []

    def run(*argv: str, env: dict[str, str], **_: object) -> tuple[int, str, str]:
        seen.append((argv, env))
        return 1, "", ""

    monkeypatch.setattr(effective, "run_anyway", run)
    with pytest.raises(base.Failed):
        effective._read_shells(re.compile("NCCL_"))
    [(argv, environment)] = seen
    assert "hf_x" not in " ".join(argv)
    assert environment.items() >= {"HF_TOKEN": "hf_x", "PATH": "/opt/bin", "HOME": "/root"}.items()
    assert not environment.keys() & {"A=B", "NUL"}


def test_a_login_without_privileges_is_asked_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the real bash run as the user of the test, in place of one without privileges."""
    own = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(logins, "UNPRIVILEGED", own.pw_name)
    asked: list[tuple[str, ...]] = []

    def run(*argv: str, env: dict[str, str], **_: object) -> tuple[int, str, str]:
        asked.append(argv)
        at = argv.index("bash")
        done = subprocess.run(argv[at:], env=env, capture_output=True, text=True, check=False)
        return done.returncode, "Welcome\nNCCL_A=2\n" + done.stdout, done.stderr

    monkeypatch.setattr(logins, "run_anyway", run)
    found = logins.of_unprivileged({"NCCL_A": "1", "HOME": "/root", "PATH": "/usr/bin:/bin"})
    assert found
    assert (found["NCCL_A"], found["HOME"]) == ("1", own.pw_dir)
    assert asked[0][:2] == ("setpriv", f"--reuid={own.pw_uid}")
    monkeypatch.setattr(logins, "UNPRIVILEGED", "no-such-user")
    assert logins.of_unprivileged({}) is None


def test_variables_of_a_login_without_privileges_are_its_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ("1", "/nowhere/profile:1")
    root, other = {"NCCL_A": place, "NCCL_B": place}, {"NCCL_B": place, "NCCL_C": ("3", None)}
    monkeypatch.setattr(effective, "_READ", [({"logins": root, "unprivileged": other}, [None, None])])
    for name in ("_services", "_users", "_jobs"):
        monkeypatch.setattr(effective, name, dict)
    found = effective.variables({"environment": "NCCL_"})
    assert found["unprivileged"] == {"NCCL_A": [None, place[1]], "NCCL_C": ["3", None]}


def test_the_file_that_only_root_can_read_is_named() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to others
        script = Path(name, "x.sh")
        script.touch(0o644)
        Path(name).chmod(0o755)
        assert logins.closed_to_others(f"{script}:2") == f"{script}:2"
        script.chmod(0o600)
        assert logins.closed_to_others(f"{script}:2") == str(script)
        Path(name).chmod(0o700)
        assert logins.closed_to_others(f"{script}:2") == name
    assert logins.closed_to_others(None) is None


@pytest.mark.parametrize("end", ["exit", "exec true"])
def test_a_shell_that_ends_early_is_no_answer(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profile").write_text(f"{end}\n")
    script = effective.SHELLS.replace("/etc/profile", f"{tmp_path}/profile").replace("~/", f"{tmp_path}/")
    monkeypatch.setattr(effective, "SHELLS", script)
    with pytest.raises(base.Failed, match="ends before"):
        effective._read_shells(re.compile("NCCL_"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that is the root of the files the probe reads."""
    monkeypatch.setattr(base, "FOLDERS", (f"{tmp_path}/etc", f"{tmp_path}/lib"))
    for name in ("etc/sysctl.d", "lib/sysctl.d", "etc/systemd/system.conf.d"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_sysctls_of_the_next_boot_in_their_order(root: Path) -> None:
    (root / "lib/sysctl.d/50-default.conf").write_text("kernel.sysrq = 1\n-net/ipv4/tcp_keepalive_time=5\n")
    (root / "lib/sysctl.d/99-hidden.conf").write_text("net.ipv4.tcp_keepalive_time=1\n")
    (root / "etc/sysctl.d/99-hidden.conf").write_text("# nothing\n")
    (root / "etc/sysctl.d/90-gpuprov.conf").write_text("# ours\nnet.ipv4.tcp_keepalive_time = 600\n")
    name = "net.ipv4.tcp_keepalive_time"
    assert effective.boot_sysctls({"sysctls": [name]}) == [
        [f"{root}/lib/sysctl.d/50-default.conf:2", name, "5"],
        [f"{root}/etc/sysctl.d/90-gpuprov.conf:2", name, "600"],
    ]


def test_a_name_alone_takes_an_earlier_value_away(root: Path) -> None:
    """Check that a line such as `-kernel.a`, after which systemd-sysctl does not set it, is listed."""
    (root / "etc/sysctl.d/a.conf").write_text("kernel.a = 1\n-kernel/a\nkernel.a\n")
    assert effective.boot_sysctls({"sysctls": ["kernel.a"]}) == [
        [f"{root}/etc/sysctl.d/a.conf:1", "kernel.a", "1"],
        [f"{root}/etc/sysctl.d/a.conf:2", "kernel.a", ""],
    ]


def test_systemd_s_own_lines_end_with_the_last_drop_in(root: Path) -> None:
    (root / "etc/systemd/system.conf").write_text("[Manager]\n#DefaultLimitNOFILE=1\n")
    (root / "etc/systemd/system.conf.d/90-gpuprov.conf").write_text("[Manager]\nDefaultLimitNOFILE=8\n")
    (root / "etc/systemd/system.conf.d/zz.conf").write_text("[Manager]\nDefaultLimitNOFILE=4\n")
    places = [place for place, line in base.systemd_lines() if line.startswith("DefaultLimit")]
    assert places == [f"{root}/etc/systemd/system.conf.d/{name}:2" for name in ("90-gpuprov.conf", "zz.conf")]


def test_assignments_lose_their_quotes(tmp_path: Path) -> None:
    path = tmp_path / "environment"
    path.write_text("# A=1\nexport B='2'\nC=\"3\"\nnot one\n")
    assert list(effective.assignments(str(path))) == [("B", "2", f"{path}:2"), ("C", "3", f"{path}:3")]


def sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, rows: list[list[str]]
) -> list[list[str]]:
    """Return the offers of a package that the collector finds in a source file, with a fake apt."""
    path = tmp_path / "site.list"
    path.write_text(text)
    index = tmp_path / "Packages"
    index.write_text("Package: libcuda1\n")

    def output(*argv: str, seconds: float = 60) -> str:
        if argv[0] == "sh":
            assert rows[0][2] != "Debian" or "trusted=yes" in text, (
                "an archive's index is large, and is not read"
            )
            return "Package: libcuda1\n"
        known = ((*row[:2], "") if "--no-release-info" in argv else row for row in rows)
        return "\n".join("\t".join([*row, f"{path}:1", str(index)]) for row in known)

    monkeypatch.setattr(gpuprov_sources, "output", output)
    monkeypatch.setattr(gpuprov_sources, "answer", output)
    return [row[1:] for row in gpuprov_sources.offers(["http://mirror/cuda"], ["libcuda1"])]


@pytest.mark.parametrize(
    ("text", "row", "found"),
    [
        (
            "deb http://deb.debian.org/debian bookworm main",
            ["http://deb.debian.org/debian/", "bookworm", "Debian"],
            [],
        ),
        ("deb http://mirror/cuda /", ["http://mirror/cuda/", "/", "NVIDIA"], []),
        (
            "deb [trusted=yes] http://u:pa55@x/debian bookworm main",
            ["http://u:pa55@x/debian/", "bookworm", "Debian"],
            [["http://x/debian/", "trusted=yes", ["libcuda1"]]],
        ),
        ("deb http://x/ /", ["http://x/", "/", "Site"], [["http://x/", "", ["libcuda1"]]]),
    ],
    ids=["archive", "lock", "unsigned", "site"],
)
def test_sources_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, row: list[str], found: list[list[str]]
) -> None:
    """Check which repositories are listed as other ones, with the unsafe option and the packages that they
    offer.
    """
    assert sources(monkeypatch, tmp_path, text, [row]) == found


PAM = {
    "sshd": "auth required pam_env.so envfile={0}/credentials\n@include common\n"
    "session required pam_env.so # comment\nsession optional pam_env.so readenv=1 envfile={0}/locale\n",
    "cron": "session required pam_env.so conffile={0}/site.conf readenv=0\n",
    "common": "session [default=1] pam_permit.so\nsession include more\n",
    "more": "account required pam_env.so envfile={0}/never\n"
    "session required \\\n  pam_env.so envfile={0}/more-env\n",
    "loop": "@include loop\nsession include loop\n",
    "site.conf": "NCCL_A DEFAULT=cron\n",
    "pam_env.conf": "NCCL_CONF OVERRIDE=conf\n",
    "environment": "export NCCL_A=login\n",
    "locale": "LANG=C.UTF-8\nNCCL_B=locale\n",
    "credentials": "NCCL_B=early\nNCCL_C=credentials\n",
    "never": "NCCL_NEVER=1\n",
    "more-env": "NCCL_D=more\n",
}


@pytest.fixture
def pam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with services of PAM and files of pam_env, whose default paths lead there."""
    for name, text in PAM.items():
        (tmp_path / name).write_text(text.format(tmp_path))
    monkeypatch.setattr(logins, "SERVICES", (str(tmp_path),))
    monkeypatch.setattr(logins, "PAM_ENV", str(tmp_path / "pam_env.conf"))
    monkeypatch.setattr(logins, "ENVIRONMENT_FILE", str(tmp_path / "environment"))
    return tmp_path


def values(service: str | None) -> dict[str, str]:
    """Return name → value of the variables of a service; of logins for None."""
    return {name: value for name, (value, _) in logins.variables_of(service).items()}


def test_variables_of_pam_are_those_of_a_services_own_stack(pam: Path) -> None:
    assert values("sshd") == {
        "NCCL_A": "login", "NCCL_B": "locale", "NCCL_C": "credentials", "NCCL_D": "more", "LANG": "C.UTF-8",
        "NCCL_CONF": "conf",
    }  # fmt: skip
    assert logins.variables_of("cron") == {"NCCL_A": ("cron", f"{pam}/site.conf:1")}
    assert values("loop") == values(None) == values("nothing") == {}
    assert logins.service_of(logins.LOGINS) == "sshd"
    assert logins.service_of(logins.JOBS) == "cron"
    (pam / "sshd").write_text("session required pam_limits.so\n")
    assert values("sshd") == {}


def test_pam_reads_no_environment_without_its_own_file(pam: Path) -> None:
    (pam / "pam_env.conf").unlink()
    assert values("sshd") == {}
    assert values("cron") == {"NCCL_A": "cron"}


def test_services_get_variables_of_their_drop_ins_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "etc/systemd/system/service.d").mkdir(parents=True)
    drop_in = root / "etc/systemd/system/service.d/site.conf"
    drop_in.write_text("[Service]\nEnvironment=NCCL_A=1 'NCCL_B=two words'\n")
    (root / "environment").write_text("NCCL_A=file\n")
    shown = {
        "show-environment": "PATH=/usr/bin\nNCCL_A=0\n",
        "show": 'Environment=NCCL_A=1 "NCCL_B=two words"\n'
        f"EnvironmentFiles={root}/environment (ignore_errors=no)\n",
    }
    monkeypatch.setattr(effective, "find_program", lambda name: f"/usr/bin/{name}")
    for module in (effective, logins):
        monkeypatch.setattr(module, "run_anyway", lambda *argv, **_: (0, shown[argv[1]], ""))
    found = effective._services()
    assert found["NCCL_A"] == ("file", f"{root}/environment:1")
    assert found["NCCL_B"] == ("two words", f"{drop_in}:2")
    assert found["PATH"][0] == "/usr/bin"


def test_sshd_sets_variables_after_pam(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text("# x\nSetEnv NCCL_A=1 NCCL_B=2\n")
    monkeypatch.setattr(logins, "SSHD_FILES", (f"{tmp_path}/*.conf",))
    monkeypatch.setattr(logins, "find_program", lambda name: f"/usr/sbin/{name}")
    text = "port 22\nsetenv NCCL_A=1\nsetenv NCCL_B=2\n"
    monkeypatch.setattr(logins, "run_anyway", lambda *argv, **_: (0, text, ""))
    place = f"{tmp_path}/site.conf:2"
    assert logins.of_sshd() == {"NCCL_A": ("1", place), "NCCL_B": ("2", place)}


def test_libraries_of_the_linkers_cache_and_of_processors_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capable = tmp_path / "lib/glibc-hwcaps/x86-64-v3"
    (tmp_path / "cached").mkdir()
    capable.mkdir(parents=True)
    for path in (
        capable / "libnccl.so.2",
        tmp_path / "cached/libcuda.so.1",
        tmp_path / "cached/libother.so.1",
    ):
        path.write_text("x")
    cache = f"\tlibcuda.so.1 (libc6,x86-64) => {tmp_path}/cached/libcuda.so.1\n"
    monkeypatch.setattr(effective, "LIBRARY_FOLDERS", (f"{tmp_path}/lib",))
    monkeypatch.setattr(effective, "PRELOAD", str(tmp_path / "preload"))
    monkeypatch.setattr(effective, "find_program", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(effective, "run_anyway", lambda *argv, **_: (0, cache, ""))
    monkeypatch.setattr(effective, "lines_of", lambda path: [])
    assert set(effective._libraries([])) == {str(capable / "libnccl.so.2"), f"{tmp_path}/cached/libcuda.so.1"}


def test_another_nvidia_smi_is_one_that_path_finds_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second", "system"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nvidia-smi").write_text("#!/bin/sh\n")
        (tmp_path / name / "nvidia-smi").chmod(0o755)
    (tmp_path / "first/nvidia-smi").chmod(0o644)
    folders = [f"{tmp_path}/{name}" for name in ("first", "second", "system")]
    monkeypatch.setattr(effective, "PROGRAM_FOLDERS", (f"{tmp_path}/system",))

    def found(path: str) -> list[str]:
        return effective._programs([{"PATH": (path, None)}, {}])

    assert found(":".join(folders)) == [f"{tmp_path}/second/nvidia-smi"]
    assert found(f"{tmp_path}/system:{tmp_path}/second") == found("relative") == []


def test_options_of_a_stanza_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "site.sources"
    path.write_text("# x\n\nTypes: deb\nURIs: http://a/\n\nTypes: deb\nURIs: http://b/\nTrusted: yes\n")
    assert [
        bool(gpuprov_sources.UNSIGNED.search(gpuprov_sources.source_text(f"{path}:{n}"))) for n in (1, 2)
    ] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("manager", "version", "reads"),
    [
        ("dpkg-query", "1.5.2-6+deb12u2", False),
        ("dpkg-query", "1.5.3-5ubuntu5.4", True),
        ("dpkg-query", "1.7.0-5", True),
        ("rpm", "1.5.1", False),
        ("rpm", "1.6.1", True),
        ("none", "", False),
    ],
)
def test_without_limits_conf_only_a_newer_pam_reads_limits(
    manager: str, version: str, reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "LIMITS_CONF", str(tmp_path / "limits.conf"))
    monkeypatch.setattr(system, "find_program", lambda name: name == manager)
    monkeypatch.setattr(system, "run_anyway", lambda *_: (0, version, ""))
    assert system._reads_limits() is reads
    (tmp_path / "limits.conf").touch()
    assert system._reads_limits()


@pytest.mark.parametrize("code", [0, 2])
def test_dpkg_s_message_about_its_own_settings_is_an_inconsistency(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "dpkg: error: configuration error: /etc/dpkg/dpkg.cfg:9: unknown option 'site'\n"
    monkeypatch.setattr(packages, "find_program", lambda name: name == "dpkg")
    monkeypatch.setattr(packages, "run_anyway", lambda *_: (code, "amd64\n", said * bool(code)))
    raw = {"manager": "dpkg", "text": "", "interrupted": False, "refused": packages._refusal()}
    expected = [Expectation("dpkg.consistent", [], "preflight")]
    found = judge("n", Facts("n", "", 0.0, {"packages": raw}), expected).drift
    assert [each.actual for each in found] == [[said.strip()]] * bool(code)
