"""Changes that the role containerd makes to config.toml, and its reading of a node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuprov.gpuprov.plugins.action.gpuprov_controller import run_limited

from tests import ROOT
from tests.unit.roles.scripts import script

CRI = 'plugins."io.containerd.grpc.v1.cri"'
NVIDIA = {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": "nvidia", "SystemdCgroup": True}}
WANTED = {
    "containerd": {
        "default_runtime_name": "nvidia",
        "runtimes": {
            "runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}},
            "nvidia": NVIDIA,
        },
    },
    "enable_cdi": True,
}
# The file of Debian's package with additions by a site.
SITES = f"""\
# ours, said the site
version = 2

[plugins]
  [{CRI}]
    sandbox_image = "site/pause:3.9" # of our own registry
    [{CRI}.cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd/opt"
"""
NO_VERSIONS = ("[1]", "{a = 2}", "true", "2.0", '"2"', "0x" + "f" * 5000)
NO_NAMES = ("5", '"cri"', "[5]", '[["cri"]]', "{cri = true}")

RECORDED = ROOT / "tests/recorded/containerd"

merge, look = script("containerd", "merge"), script("containerd")


def test_what_is_wanted_is_added_and_every_line_of_the_sites_stays() -> None:
    text, ours = merge.merged(SITES, WANTED, [])
    table = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]
    assert table["containerd"] == WANTED["containerd"]
    assert table["enable_cdi"] is True
    added = text.splitlines()
    assert [line for line in SITES.splitlines() if line not in added] == []
    assert merge.merged(text, WANTED, ours) == (text, ours)


def test_what_is_as_it_shall_be_is_not_written_again() -> None:
    """Leave an unchanged file as it is, although tomlkit changes the indent of tables that it has written."""
    without = "\n".join(line for line in SITES.splitlines() if "sandbox_image" not in line)
    cri = {"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": False}}, "nvidia": NVIDIA}}}
    text, ours = merge.merged(without, cri, [])
    assert merge.merged(text, cri, ours) == (text, ours)


def test_what_was_ours_goes_and_leaves_the_file_as_it_was() -> None:
    text, ours = merge.merged(SITES, WANTED, [])
    left, nothing = merge.merged(text, {}, ours)
    assert ([line for line in left.splitlines() if line], nothing) == (
        [line for line in SITES.splitlines() if line],
        [],
    )


def test_values_are_changed_where_they_stand() -> None:
    site = f"""\
version = 2
[{CRI}.containerd]
  default_runtime_name = "runc" # for now
  snapshotter = "native"
  [{CRI}.containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
    privileged_without_host_devices = true
    [{CRI}.containerd.runtimes.nvidia.options]
      BinaryName = "other"
"""
    wanted = {"containerd": {"default_runtime_name": "nvidia", "runtimes": {"nvidia": NVIDIA}}}
    text, ours = merge.merged(site, wanted, [])
    changed = site.replace('"runc" # for now', '"nvidia" # for now').replace('"other"', '"nvidia"')
    assert [line for line in changed.splitlines() if line not in text.splitlines()] == []
    table = tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert table["runtimes"]["nvidia"]["options"] == NVIDIA["options"]
    # The type of a runtime that the site names is kept: the runtime could not start without it.
    rest, _ = merge.merged(text, {}, ours)
    kept = tomllib.loads(rest)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert kept == {
        "snapshotter": "native",
        "runtimes": {
            "nvidia": {"runtime_type": "io.containerd.runc.v2", "privileged_without_host_devices": True}
        },
    }


def test_what_the_site_changed_since_is_the_sites() -> None:
    text, ours = merge.merged(SITES, {"enable_cdi": True}, [])
    changed = text.replace("enable_cdi = true", "enable_cdi = false")
    assert merge.merged(changed, {}, ours) == (changed, [])


@pytest.mark.parametrize(
    ("text", "disabled"),
    [
        ('disabled_plugins = ["cri"]\n', []),
        (
            'version = 2\ndisabled_plugins = [\n  "io.containerd.grpc.v1.cri", # Docker\n  "a.b.v1.c",\n]\n',
            ["a.b.v1.c"],
        ),
    ],
    ids=["of-docker", "several"],
)
def test_plugin_that_is_switched_off_is_switched_on(text: str, disabled: list[str]) -> None:
    document = tomllib.loads(merge.merged(text, WANTED, [])[0])
    assert document["disabled_plugins"] == disabled
    assert document["version"] == 2


def test_plugin_stays_as_it_is_where_nothing_is_wanted_of_it() -> None:
    text = 'disabled_plugins = ["cri"]\n'
    nothing = {"refused": None, "ours": [], "overriding": []}
    assert merge.main({"text": text, "cri": {}, "ours": []}) == {"text": text, **nothing}
    assert merge.main({"text": None, "cri": {}, "ours": []}) == {"text": None, **nothing}


def test_file_that_is_not_there_is_made() -> None:
    document = tomllib.loads(merge.merged("", WANTED, [])[0])
    assert document == {"version": 2, "plugins": {"io.containerd.grpc.v1.cri": WANTED}}


@pytest.mark.parametrize("version", [3, 4])
def test_later_versions_call_the_plugin_otherwise(version: int) -> None:
    document = tomllib.loads(merge.merged(f"version = {version}\n", WANTED, [])[0])
    assert document == {"version": version, "plugins": {"io.containerd.cri.v1.runtime": WANTED}}


def test_file_that_is_not_there_is_made_with_version_and_imports_of_the_default() -> None:
    """Keep conf.d in effect: containerd from 2.2 on reads it only without config.toml, or by an import."""
    default = {"version": 4, "imports": ["/etc/containerd/conf.d/*.toml"]}
    document = tomllib.loads(merge.merged("", WANTED, [], default)[0])
    assert document == {**default, "plugins": {"io.containerd.cri.v1.runtime": WANTED}}
    assert merge.merged("", {}, [], default) == ("", [])
    there = tomllib.loads(merge.merged("version = 2\n", WANTED, [], default)[0])
    assert (there["version"], "imports" in there) == (2, False)


def default_of(version: str) -> str:
    """Return what `containerd config default` prints.

    Recorded from Debian's packages 1.6.20, 1.7.24 and 2.1.9. 2.0 differs from 2.1 in keys of other plugins
    only. 2.2 imports conf.d, and 2.3 has version 4, whose sockets are plugins (containerd-config.toml(5)); of
    the tables before [plugins] only [debug] is left, without a socket.
    """
    recorded = {"2.0": "2.1.9", "2.2": "2.1.9", "2.3": "2.1.9"}.get(version, version)
    text = (RECORDED / f"{recorded}.toml").read_text()
    if version in ("2.2", "2.3"):
        text = text.replace("imports = []", "imports = ['/etc/containerd/conf.d/*.toml']")
    if version == "2.3":
        before, grpc, rest = re.split(r"(\[grpc\]\n.*?)(?=\[plugins\])", text, maxsplit=1, flags=re.DOTALL)
        assert "[ttrpc]" in grpc
        server = (
            "  [plugins.'io.containerd.server.v1.grpc']\n    address = '/run/containerd/containerd.sock'\n"
        )
        debug = "[debug]\n  level = ''\n  format = ''\n  log_trace_id = false\n\n"
        text = (
            before.replace("version = 3", "version = 4")
            + debug
            + rest.replace("[plugins]\n", f"[plugins]\n{server}")
        )
    return text


@pytest.mark.parametrize("version", ["1.6.20", "1.7.24", "2.0", "2.1.9", "2.2", "2.3"])
def test_default_configuration_of_each_version_gets_the_settings_and_keeps_the_rest(version: str) -> None:
    default = default_of(version)
    before = tomllib.loads(default)
    text, ours = merge.merged(default, WANTED, [])
    after = tomllib.loads(text)
    table = after["plugins"][merge.CRI[before["version"]]]
    assert table["containerd"]["default_runtime_name"] == "nvidia"
    assert table["containerd"]["runtimes"]["nvidia"] == NVIDIA
    assert table["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
    assert table["enable_cdi"] is True
    there, now = merge.flat(before), merge.flat(after)
    changed = {path[2:] for path in now if now[path] != there.get(path)}
    assert changed <= set(merge.flat(WANTED))
    assert there.keys() <= now.keys()
    left, nothing = merge.merged(text, {}, ours)
    kept = merge.flat(tomllib.loads(left))
    assert nothing == []
    assert kept == {path: value for path, value in there.items() if path not in changed_paths(ours, before)}


def changed_paths(ours: list[Any], document: dict[str, Any]) -> set[tuple[str, ...]]:
    """Return the paths that the role wrote, in the whole file."""
    return {("plugins", merge.CRI[document["version"]], *path) for path, _ in ours}


ROOT_3 = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n"
CDI_OFF = "[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n"


@pytest.mark.parametrize(
    ("root", "imported", "said"),
    [
        (ROOT_3, CDI_OFF, "/a.toml: it sets enable_cdi = false"),
        (ROOT_3, f"version = 3\n{CDI_OFF}", "/a.toml: it sets enable_cdi = false"),
        (ROOT_3, "version = 4\n", "/a.toml: its version is 4, and that of config.toml 3"),
        ("version = 2\n", "version = 3\n", "/a.toml: its version is 3, and that of config.toml 2"),
        *(
            (ROOT_3, f"version = {value}\n", "/a.toml: its value of `version` is not a version")
            for value in ("true", "0x" + "f" * 5000, "'3'")
        ),
        (
            ROOT_3,
            CDI_OFF.replace("false", "0x" + "f" * 5000),
            "/a.toml: it sets enable_cdi = a number that is too large to print",
        ),
        # Up to 1.7 any table of the plugin counts, which the node's answer names.
        ("version = 2\n", CDI_OFF, None),
        (ROOT_3, CDI_OFF.replace("false", "true"), None),
        (ROOT_3, CDI_OFF.replace("enable_cdi", "enable_selinux"), None),
        (ROOT_3, f"version = 2\n{CDI_OFF.replace('cri.v1.runtime', 'grpc.v1.cri')}", None),
        (ROOT_3, "version = 3\nplugins = 5\n", None),
        (ROOT_3, "version = 3\n[plugins]\n'io.containerd.cri.v1.runtime' = 5\n", None),
    ],
)
def test_imported_files_that_override_settings_are_named(root: str, imported: str, said: str | None) -> None:
    asked = {"text": root, "cri": WANTED, "ours": [], "imported": [["/a.toml", imported]]}
    assert merge.main(asked)["overriding"] == ([said] if said else [])
    assert merge.main({**asked, "cri": {}})["overriding"] == []


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        ("a = [", "imports /a.toml, which is not TOML, line 1, column 1: "),
        (".".join("a" * 600) + " = 1\n", "imports /a.toml, which has a line of more than 512 dots"),
        ("a = " + "[" * 3000 + "]" * 3000, "imports /a.toml, which is not TOML"),
        ("a = " + "9" * 5000, "imports /a.toml, which is not TOML"),
        ("#" * (65 << 10), "imports /a.toml, which is larger"),
    ],
)
def test_imported_file_that_cannot_be_read_is_refused(imported: str, said: str) -> None:
    asked = {"text": ROOT_3, "cri": WANTED, "ours": [], "imported": [["/a.toml", imported]]}
    assert merge.main(asked)["refused"].startswith(said)


@pytest.mark.parametrize("key", ["text", "imported"])
def test_a_key_of_many_dots_takes_little_memory(key: str) -> None:
    """Measure the script's memory with the limit for its size: 64 KiB took 2.3 GiB."""
    dots = ".".join("a" * 32_000) + "=1\n"
    asked = {"text": ROOT_3, "cri": WANTED, "ours": [], "imported": [["/a.toml", dots]]}
    asked |= {"text": dots} if key == "text" else {}
    done = run_limited(ROOT / "roles/containerd/files/merge.py", json.dumps(asked))
    assert "more than 512 dots" in json.loads(done.stdout)["refused"]


def test_a_script_on_the_controller_has_a_limit_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import sys\nprint(len(bytearray(int(sys.stdin.read()) << 20)) >> 20)\n")
    assert run_limited(path, "100").stdout == "100\n"
    assert "MemoryError" in run_limited(path, "600").stderr


def test_a_merge_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(text: str) -> None:
        raise MemoryError

    monkeypatch.setattr(merge, "parsed", exhausted)
    asked = {"text": ROOT_3, "cri": WANTED, "ours": []}
    assert merge.main(asked)["refused"] == "takes more memory to merge than a script may use"


def test_inline_tables_get_inline_tables() -> None:
    site = f"version = 2\n[{CRI}]\ncontainerd = {{snapshotter = 'native'}}\n"
    document = tomllib.loads(merge.merged(site, WANTED, [])[0])
    kept = {"containerd": {**WANTED["containerd"], "snapshotter": "native"}}
    assert document["plugins"]["io.containerd.grpc.v1.cri"] == {**WANTED, **kept}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2\n\nroot = /var\n", "is not TOML, line 3, column 8: "),
        ("version = 2\n[plugins\n", "is not TOML, line 2, column 9: "),
        ("disabled_plugins = [", "is not TOML, line 1, column 1: Unexpected end of file"),
        ("[plugins.cri]\nsandbox_image = 'x'\n", "is of version 1, "),
        (f"version = 2\n[{CRI}]\ncontainerd.snapshotter = 'native'\n", "has dotted keys"),
        ("[[a]]\nb = 1\n" * 40_000, "is larger than 64 KiB"),
        *((f"version = {value}\n", "has a value of `version`") for value in NO_VERSIONS),
        *((f"version = 2\ndisabled_plugins = {value}\n", "has a value of `disabled_") for value in NO_NAMES),
        ("version = 2\nplugins = 5\n", "has a value in place of the table plugins"),
        ("version = 2\n[[plugins]]\na = 1\n", "has a value in place of the table plugins"),
        (f"version = 2\n[{CRI}]\ncontainerd = 5\n", "has a value in place of the table plugins.io.con"),
    ],
)
def test_file_that_cannot_be_changed_is_refused(text: str, said: str) -> None:
    answer = merge.main({"text": text, "cri": WANTED, "ours": []})
    assert answer["refused"].startswith(said)
    assert answer["text"] == text


def test_file_that_takes_too_long_is_refused() -> None:
    """Limit the processor time on the controller: tomlkit's is quadratic for keys with dots."""
    text = "\n".join(f"a.b{number}.c=1" for number in range(4000))
    program = (
        "import json, sys, merge; merge.SECONDS = 0.3; print(json.dumps(merge.main(json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-Bc", program],
        cwd=ROOT / "roles/containerd/files",
        input=json.dumps({"text": text, "cri": WANTED, "ours": []}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "takes more than 0.3 s to merge" in json.loads(done.stdout)["refused"]


@pytest.mark.parametrize(
    ("text", "dump"),
    [
        ("", "imports = ['{0}/config.toml', '{0}/conf.d/b.toml', '{0}/conf.d/a.toml']\n"),
        ("imports = [\n  'conf.d/*.toml',\n]\n", ""),
        ('imports = ["{0}/conf.d/*.toml"]\n', "imports = ['{0}/conf.d/*.toml']\n"),
    ],
    ids=["listed", "refused", "patterns"],
)
def test_imported_files_are_those_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, dump: str
) -> None:
    monkeypatch.setattr(look, "CONFIG", tmp_path / "config.toml")
    (tmp_path / "conf.d").mkdir()
    for name in ("config.toml", "conf.d/a.toml", "conf.d/b.toml"):
        (tmp_path / name).touch()
    found = look.imported(text.format(tmp_path), dump.format(tmp_path))
    assert {path.name for path in found} == {"a.toml", "b.toml"}
    assert look.imported("", "version = 3\nimports = []\n") == []


def test_default_configuration_says_its_version_and_imports() -> None:
    assert look.default(default_of("1.6.20")) == {"version": 2, "imports": []}
    assert look.default(default_of("2.3")) == {"version": 4, "imports": ["/etc/containerd/conf.d/*.toml"]}
    assert look.default("") == {}


def test_file_that_is_not_utf_8_is_a_failure_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_bytes(b"version = 2 # r\xe9gion\n")
    monkeypatch.setattr(look, "CONFIG", tmp_path / "config.toml")
    monkeypatch.setattr(look, "installed", dict)
    monkeypatch.setattr(look, "started", lambda unit: None)
    look.main()
    says = json.loads(capsys.readouterr().out)["failure"]["says"]
    assert says == f"{tmp_path}/config.toml is not UTF-8 at its byte 16, and containerd does not read it"


def test_imported_file_that_is_not_utf_8_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"# r\xe9gion\n" + b"x" * look.BYTES)
    assert look.beginning(tmp_path / "a.toml").startswith("# r\ufffdgion\n")
    assert len(look.beginning(tmp_path / "a.toml")) == look.BYTES
