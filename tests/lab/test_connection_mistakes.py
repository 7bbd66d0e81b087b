"""Connection mistakes in every verb: one line, with the file and line of the mistake."""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest
import yaml

from gpuprov_lab import Lab, Node
from tests.lab.command_line import gpuprov
from tests.lab.marks import slow_ones

# Mistake → part of its message.
MISTAKES = {
    "wrong-port": "port 40022: connection refused",
    "unknown-alias": "no-such-alias.invalid",
    "wrong-key": "refused the key",
    "no-key": "other-key-that-is-not-there does not exist",
    "bad-jump": "no-such-gate.invalid",
    "not-confirmed": "the host key of ",
}
VERBS = ("plan", "drift", "verify", "apply", "bootstrap")
LATER = {("bootstrap", "not-confirmed"), ("bootstrap", "wrong-key"), ("bootstrap", "no-key")}
"""Bootstrap logs in with another key, and confirms host keys itself."""
WRITTEN = {
    "203.0.113.7:40022:1": "has more than one port",
    "{address: 203.0.113.7:22, ssh: {port: 23}}": "the address has 22, ssh.port is 23",
    "{address: gpu01, ssh: {jump: 'gate:22x'}}": "the port of 'gate:22x'",
    "{address: gpu01, ssh: {prt: 22}}": "unknown key 'prt'",
}


@pytest.fixture(scope="module")
def node(module_lab: Lab) -> Node:
    [node] = module_lab.up(1, gpu="a100x4")
    return node


@pytest.fixture(scope="module")
def folder(module_lab: Lab, node: Node, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the lock of a fleet that has a host for each mistake of a connection."""
    folder = tmp_path_factory.mktemp("mistakes")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "other-key"], check=True)
    (folder / "empty").touch()
    way = {"address": node.address}
    hosts = {
        "wrong-port": f"{node.address}:40022",
        "unknown-alias": "no-such-alias.invalid",
        "wrong-key": {**way, "ssh": {"identity_file": str(folder / "other-key")}},
        "no-key": {**way, "ssh": {"identity_file": str(folder / "other-key-that-is-not-there")}},
        "bad-jump": {**way, "ssh": {"jump": "nobody@no-such-gate.invalid:2222"}},
        "not-confirmed": {**way, "ssh": {"known_hosts": str(folder / "empty")}},
    }
    fleet = yaml.safe_load(module_lab.fleet("hgx-a100-4"))
    [group] = fleet["groups"].values()
    group["hosts"] = hosts
    (folder / "fleet.yml").write_text(yaml.safe_dump(fleet, sort_keys=False))
    gpuprov(folder, "lock")
    return folder


@pytest.mark.parametrize(
    ("mistake", "verb"),
    slow_ones(
        [cell for cell in product(MISTAKES, VERBS) if cell[::-1] not in LATER],
        {cell for cell in product(MISTAKES, ("drift", "verify")) if cell[0] != "wrong-port"},
    ),
)
def test_a_mistake_is_one_line_with_its_place(folder: Path, verb: str, mistake: str) -> None:
    more = {"apply": ["--yes"], "bootstrap": ["--key", "other-key.pub"]}.get(verb, [])
    done = gpuprov(folder, verb, mistake, *more, code=None)
    assert done.returncode == (1 if mistake == "no-key" and verb != "verify" else 4), (
        done.stdout + done.stderr
    )
    file = "fleet.yml" if verb == "bootstrap" else "fleet.lock.yml"
    words = f"unreachable  {mistake}" if verb == "verify" else MISTAKES[mistake]  # ssh names a bad jump
    said = [line for line in (done.stdout + done.stderr).splitlines() if words in line]
    assert len(said) == 1, done.stdout + done.stderr
    place = said[0].rpartition("see ")[2].strip()
    path, _, line = place.rpartition(":")
    assert os.path.basename(path) == file, said  # noqa: PTH119
    stated = (folder / file).read_text().splitlines()[int(line) - 1]
    assert mistake in stated or "connection" in stated, stated


@pytest.mark.parametrize("stated", WRITTEN)
def test_what_is_written_wrong_is_one_line_with_its_place(tmp_path: Path, stated: str) -> None:
    text = f"groups:\n  gpu:\n    profile: hgx-a100-4\n    os: debian12\n    hosts:\n      gpu01: {stated}\n"
    (tmp_path / "fleet.yml").write_text(text)
    for words in (["lock"], ["bootstrap"], ["inventory", "generate", "out"]):
        done = gpuprov(tmp_path, *words, code=2)
        [line] = done.stderr.strip().splitlines()
        assert "fleet.yml:6: " in line, done.stderr
        assert WRITTEN[stated] in line, done.stderr
