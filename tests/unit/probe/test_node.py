"""Processing of text by the probe on the node: hiding secrets, finding keys, ordering configuration."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from gpuprov.probe.node import base, gpu, hardware, host, main, packages, system
from gpuprov.probe.parse.modules import parse_modprobe
from gpuprov.probe.payload import Parameters
from tests.unit.programs import write_program

# Begins like a key of version 4; its fingerprint is SHA-1 over 0x99, length and body (RFC 9580, 5.5.4).
BODY = bytes([4]) + bytes(range(50))
FINGERPRINT = "A89A2E66D020CFEFCD92D0C9B67622777A37BBB8"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://user:pa55@m.example/x", "https://(hidden)@m.example/x"),
        ("http_proxy=http://u:pa55@proxy:3128/", "http_proxy=http://(hidden)@proxy:3128/"),
        ("quiet rd.iscsi.password=pa55 ro", "quiet rd.iscsi.password=(hidden) ro"),
        ("dockerd --registry-token pa55 --debug", "dockerd --registry-token (hidden) --debug"),
        ('{"api_key": "pa55", "x": 1}', '{"api_key": "(hidden)", "x": 1}'),
        ("NCCL_DEBUG=INFO", "NCCL_DEBUG=INFO"),
        ("passwordauthentication no", "passwordauthentication no"),
    ],
)
def test_secrets_are_hidden(text: str, hidden: str) -> None:
    """Check that secrets in a text are replaced."""
    assert base.redact(text) == hidden


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["token-", "a=", "token=", "--token ", "token ", "-", "a://", "token = "])
def test_long_texts_of_users_take_little_time(piece: str) -> None:
    """Hide in 1 MiB, as a name and as a text; a search that begins inside of names takes hours for it."""
    text = piece * ((1 << 20) // len(piece)) + "!"
    begun = time.process_time()
    base.blot_value(text, "NCCL_" + text)
    base.blot_value(text, "NCCL_A")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "text", ["a=token=pa55", "x.y-token : 'pa55'", "--a --my-secret\tpa55;", "-token=pa55"]
)
def test_names_are_found_in_other_texts(text: str) -> None:
    assert "pa55" not in base.redact(text)


def test_secrets_in_json_are_hidden_by_name() -> None:
    value = {
        "log-opts": {"splunk-token": "pa55", "tag": "x"},
        "proxies": {"http-proxy": "http://u:pa55@p"},
        "l": ["a"],
    }
    shown = base.blot_value(value)
    assert "pa55" not in json.dumps(shown)
    assert (shown["log-opts"]["tag"], shown["l"]) == ("x", ["a"])


def test_only_named_variables_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        'export NCCL_DEBUG="INFO"\nAWS_SECRET_ACCESS_KEY=pa55\nOMP_NUM_THREADS=8\n# CUDA_X=1\n TF_TOKEN=a\n'
    )
    monkeypatch.setattr(system, "read_or_none", lambda path: text if path == "/etc/environment" else None)
    found = system.environment({"environment": Parameters().environment})
    assert found == {
        "/etc/environment": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "TF_TOKEN": "(hidden)"}
    }


def test_sources_lose_comments_keys_and_credentials() -> None:
    key = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"# a comment\nTypes: deb\nURIs: https://u:pa55@m.example/\n\n\n\nSigned-By:\n {key}\n"
    assert packages._without_comments(text) == (
        "Types: deb\nURIs: https://(hidden)@m.example/\n\nSigned-By:\n BEGIN PGP"
    )


@pytest.mark.parametrize(
    "header",
    [
        bytes([0x99, 0, len(BODY)]),
        bytes([0x98, len(BODY)]),
        bytes([0xC6, len(BODY)]),
        b"\xc6\xff" + bytes([0, 0, 0, len(BODY)]),
    ],
)
@pytest.mark.parametrize("armoured", [False, True])
def test_fingerprints_of_keyrings(tmp_path: Path, header: bytes, armoured: bool) -> None:
    """Check the fingerprints of keys in binary and text keyrings."""
    user_id = bytes([0xCD, 4]) + b"name"
    data = header + BODY + user_id
    if armoured:
        lines = base64.encodebytes(data).decode()
        begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----\n" for word in ("BEGIN", "END"))
        data = f"{begin}Version: x\n\n{lines}=abcd\n{end}".encode()
    ring = tmp_path / "ring.gpg"
    ring.write_bytes(data)
    assert packages._fingerprints(str(ring)) == [FINGERPRINT]


def test_what_is_no_keyring_has_no_fingerprints(tmp_path: Path) -> None:
    ring = tmp_path / "ring.gpg"
    for noise in (b"", b"\xff", b"\x99\x01", b"<html>not found</html>", os.urandom(64)):
        ring.write_bytes(noise)
        assert isinstance(packages._fingerprints(str(ring)), list)


def test_damaged_keyrings_have_no_fingerprints(tmp_path: Path) -> None:
    """Check that a damaged key of any source does not hide the other sources: the collector would fail."""
    ring = tmp_path / "ring.asc"
    begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----\n" for word in ("BEGIN", "END"))
    long = b"\xc6\xff" + (1 << 16).to_bytes(4, "big") + b"\x04" * (1 << 16)
    cut_off = f"{begin}\nmQINBF4x\nA\n{end}".encode()
    for damaged in (cut_off, cut_off.replace(b"\nA\n", b"\nAA\n"), long):
        ring.write_bytes(damaged)
        assert packages._fingerprints(str(ring)) == []


def test_modprobe_folders_hide_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc, lib = tmp_path / "etc/modprobe.d", tmp_path / "lib/modprobe.d"
    for folder in (etc, lib, etc.parent / "modules-load.d"):
        folder.mkdir(parents=True)
    (lib / "nvidia.conf").write_text("blacklist nouveau\n")
    (etc / "nvidia.conf").write_text("# emptied\n")
    (lib / "other.conf").write_text("blacklist pcspkr\noptions nvidia NVreg_EnableMSI=1\n")
    (lib / "ignored.txt").write_text("blacklist nouveau\n")
    (etc.parent / "modules-load.d/own.conf").write_text("# none\nloop\nnvidia-peermem\n")
    monkeypatch.setattr(base, "FOLDERS", (str(etc.parent), str(lib.parent)))
    rows = gpu.modprobe({"module_pattern": Parameters().module_pattern})
    assert rows == [
        [f"{lib}/other.conf:2", "options nvidia NVreg_EnableMSI=1"],
        [f"{etc.parent}/modules-load.d/own.conf:3", "nvidia-peermem"],
    ]
    found = parse_modprobe(((place, line) for place, line in rows), "")
    assert list(found.at_boot) == ["nvidia_peermem"]


def test_dkms_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the tree of dkms 2.8 to 3.x: a build has `module`, an installed one also a link in the tree."""
    version = tmp_path / "nvidia-current/535.309.01"
    for kernel in ("6.1.0-9-amd64", "6.1.0-56-amd64"):
        (version / kernel / "x86_64/module").mkdir(parents=True)
    (version / "build").mkdir()
    (version / "source").symlink_to("/usr/src/nvidia-current-535.309.01")
    link = tmp_path / "nvidia-current/kernel-6.1.0-56-amd64-x86_64"
    link.symlink_to("535.309.01/6.1.0-56-amd64/x86_64")
    (tmp_path / "gdrdrv/2.5").mkdir(parents=True)
    (tmp_path / "gdrdrv/2.5/source").symlink_to("/usr/src/gdrdrv-2.5")
    monkeypatch.setattr(gpu, "DKMS_TREE", f"{tmp_path}/")
    assert gpu.dkms({}) == [
        ["gdrdrv", "2.5", "", "", "added"],
        ["nvidia-current", "535.309.01", "6.1.0-56-amd64", "x86_64", "installed"],
        ["nvidia-current", "535.309.01", "6.1.0-9-amd64", "x86_64", "built"],
    ]


def test_commands_are_killed_with_their_children(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(base.Failed, match="sh did not answer in time"):
        base.run("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait", seconds=0.5)
    assert time.monotonic() - begun < 5
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() - begun < 5
        time.sleep(0.01)
    assert not base.CHILDREN


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo one >&2; echo two >&2; exit 3", "sh exited with 3: two"),
        ("exit 1", "sh exited with 1: no output"),
        ("exec >&- 2>&-; sleep 60", "sh .*timed out"),
    ],
)
def test_a_failed_command_says_why(script: str, said: str) -> None:
    with pytest.raises(base.Failed, match=said):
        base.run("sh", "-c", script, seconds=0.5)


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a program that prints more than the limit fails."""
    monkeypatch.setattr(base, "OUTPUT_LIMIT", 1000)
    assert len(base.run("head", "-c", "1000", "/dev/zero")) == 1000
    with pytest.raises(base.Failed, match="head answered more than 1000 bytes"):
        base.run("head", "-c", "1001", "/dev/zero")


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(base.Failed, match="no-such-program is not installed"):
        base.run("no-such-program")


def test_a_collector_gets_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base.COLLECTORS, "sleeper", (lambda parameters: time.sleep(3), 0.2))
    begun = time.monotonic()
    document = main.collect({"collectors": ["sleeper"]})
    assert document["collectors"] == {"sleeper": {"error": "no answer in 0.2 s"}}
    assert time.monotonic() - begun < 2


def test_large_reads_of_proc_are_made_in_pieces() -> None:
    assert base.read("/proc/sys/kernel/ostype") == "Linux\n"
    assert base.read("/proc/self/status", limit=5) == "Name:"


REGISTRY = """\
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"

    [plugins."io.containerd.grpc.v1.cri".registry]
      config_path = ""

      [plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]
        auth = "dXNlcjpwYTU1"
        list = ["[", "pa55"]

    [plugins."io.containerd.grpc.v1.cri".x509_key_pair_streaming]
      tls_cert_file = ""
"""


def test_the_checksum_of_a_link_is_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    digest = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    rows = {name: system._file(str(tmp_path / name)) for name in ("file", "link", "dangling")}
    assert {name: row["sha256"] for name, row in rows.items()} == {
        "file": digest,
        "link": digest,
        "dangling": None,
    }
    assert system._file(str(tmp_path))["sha256"] is None


def test_headers_without_a_makefile_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "names_in", lambda folder: ["6.1", "6.2"] if folder == "/lib/modules" else [])
    monkeypatch.setattr(system.os.path, "isfile", lambda path: path == "/lib/modules/6.1/build/Makefile")
    monkeypatch.setattr(system, "read_or_none", lambda *_: None)
    assert system.kernels({})["headers"] == ["6.1"]


def test_the_last_rule_of_udev_sets_the_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FOLDERS", (f"{tmp_path}/etc", f"{tmp_path}/lib"))
    rule = 'SUBSYSTEM=="block", ENV{{ID_FS_UUID}}=="{}", ATTR{{{}/read_ahead_kb}}="{}"\n'
    texts = {
        "etc/90-ours.rules": rule.format("u-1", "bdi", 4096) + rule.format("u-2", "bdi", 8),
        "lib/95-site.rules": f"#{rule.format('u-1', 'bdi', 64)}{rule.format('u-1', 'queue', 128)}",
        "lib/90-ours.rules": rule.format("u-1", "bdi", 1),
    }
    for name, text in texts.items():
        path = tmp_path / name.replace("/", "/udev/rules.d/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = [hardware._read_ahead_rule(source) for source in ("UUID=u-1", "UUID=u-2", "UUID=u-3", "/dev/sda")]
    places = [f"{tmp_path}/lib/udev/rules.d/95-site.rules:2", f"{tmp_path}/etc/udev/rules.d/90-ours.rules:2"]
    assert found == [[128, places[0]], [8, places[1]], [None, None], [None, None]]


def test_registries_and_their_secrets_are_left_out() -> None:
    shown = system.REGISTRIES.sub("", REGISTRY)
    assert "pa55" not in shown
    assert "dXNlcjpwYTU1" not in shown
    assert [line.strip() for line in shown.splitlines() if line.strip()] == [
        '[plugins."io.containerd.grpc.v1.cri".cni]',
        'bin_dir = "/usr/lib/cni"',
        '[plugins."io.containerd.grpc.v1.cri".x509_key_pair_streaming]',
        'tls_cert_file = ""',
    ]


@pytest.mark.parametrize(("code", "said"), [(0, "ready state: not-ready"), (9, None)])
def test_a_failed_question_for_readiness_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str | None
) -> None:
    # A driver that does not answer prints this too.
    write_program(tmp_path / "nvidia-smi", f"echo 'ready state:  not-ready'; exit {code}")
    monkeypatch.setitem(base.ENVIRONMENT, "PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(host, "CONFIDENTIAL_GUEST", (str(tmp_path),))
    assert host._confidential() == said
