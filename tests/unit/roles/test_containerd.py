"""Changes that the role containerd makes to config.toml, and its reading of a node."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from typing import Any

import pytest

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
    assert merge.main({"text": text, "cri": {}, "ours": []}) == {"text": text, "refused": None, "ours": []}
    assert merge.main({"text": None, "cri": {}, "ours": []}) == {"text": None, "refused": None, "ours": []}


def test_file_that_is_not_there_is_made() -> None:
    document = tomllib.loads(merge.merged("", WANTED, [])[0])
    assert document == {"version": 2, "plugins": {"io.containerd.grpc.v1.cri": WANTED}}


def test_version_3_calls_the_plugin_otherwise() -> None:
    document = tomllib.loads(merge.merged("version = 3\n", WANTED, [])[0])
    assert document == {"version": 3, "plugins": {"io.containerd.cri.v1.runtime": WANTED}}


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
    ("dump", "files"),
    [
        (
            'imports = ["/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"]\n',
            ["99-nvidia.toml"],
        ),
        ("version = 3\nimports = ['/etc/containerd/config.toml']\n", []),
        ("", []),
    ],
)
def test_imported_files_are_those_beside_the_configuration(dump: str, files: list[Any]) -> None:
    assert [path.name for path in look.imported(dump)] == files
