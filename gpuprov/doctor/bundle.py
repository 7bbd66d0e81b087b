"""What a vendor's support asks for, in one file, without secrets: with a list of what was left out."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.judge import diagnose, document
from gpuprov.errors import GpuprovError, InvalidInput, NodeFailed

VENDORS_TOOL = "nvidia-bug-report.sh"
REPORT_LIMIT = 6 * 1024 * 1024
COMMANDS = {
    "nvidia-smi-q.txt": "nvidia-smi -q",
    "nvidia-smi-topo.txt": "nvidia-smi topo -m",
    "nvidia-smi-nvlink.txt": "nvidia-smi nvlink -s; nvidia-smi nvlink -e",
    "lspci.txt": "lspci -nnvvv 2>/dev/null || lspci -nnv",
    "dmesg.txt": "dmesg 2>/dev/null | tail -n 20000",
    "journal-units.txt": (
        "journalctl --no-pager -b -n 500 -u nvidia-persistenced -u nvidia-fabricmanager -u nvidia-dcgm "
        "-u nvidia-imex -u docker -u containerd"
    ),
    "packages.txt": "dpkg -l 2>/dev/null | grep -iE 'nvidia|cuda|nccl|linux-' || rpm -qa | grep -iE "
    "'nvidia|cuda|nccl|kernel'",
    "modules.txt": "lsmod; cat /proc/driver/nvidia/version /proc/driver/nvidia/params",
    "dkms.txt": "dkms status; tail -n 200 /var/lib/dkms/nvidia*/*/build/make.log",
    "numa.txt": "lscpu; cat /proc/meminfo",
}
"""File of the bundle → what is run for it; each for 60 s at most, its output cut at 6 MiB."""
VENDORS_REPORT = (
    f'command -v {VENDORS_TOOL} >/dev/null || exit 127; d=$(mktemp -d) && cd "$d" && '
    f"timeout 50 {VENDORS_TOOL} --safe-mode --output-file r >/dev/null 2>&1; "
    'gzip -dc r*.gz 2>/dev/null | head -c 6000000; cd /; rm -r "$d"'
)
"""The vendor's own report, unpacked, so that what is secret in it can be hidden; its files are taken away."""
HIDDEN = "(hidden)"
_SECRETS = (
    re.compile(
        r"(?i)(\b[\w.-]*(?:passw(?:or)?d|secret|token|api_?-?key|credential)[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]+"
    ),
    re.compile(r"(\w://)[^/@\s\"']+(?=@)"),
    re.compile(r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)"),
    re.compile(r"(?i)(\bauthorization:\s*\w+\s+)\S+"),
)
_PERSONAL = {
    "MAC address": re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I),
    "serial number": re.compile(r"(?i)(?<=serial number)(\s*:\s*)\d{6,}|(?<=<serial>)\d{6,}"),
    "IPv4 address": re.compile(
        r"(?<![\d.:-])(?!127\.|0\.|255\.)(?:\d{1,3}\.){3}\d{1,3}(?=[\s\"'/:,;)\]\\]|$)"
    ),
}
LEFT_OUT = (
    "environment of programs (only NCCL_, CUDA_ and such names are read)",
    "contents of home folders, of /etc/shadow, of keys and of certificates",
    "registries and credentials of Docker and containerd",
)
Run = Callable[[str], tuple[int, str]]
"""Runs one line of shell on the machine: exit status, and what it printed."""


def as_root(line: str) -> str:
    """The line under root's rights where that is allowed, bounded in time."""
    quoted = shlex.quote(f"exec 2>&1; {line}")
    limited = f"timeout 60 sh -c {quoted}"
    return (
        f'if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then exec sudo -n {limited}; fi; exec {limited}'
    )


def write_bundle(path: Path, seen: Examination, run: Run) -> list[str]:
    """Write the bundle; what is not in it, a line each, which stands in the bundle too.

    Args:
        path: a `.tar.gz` that must not be there yet.

    Raises:
        InvalidInput: it is there, or cannot be written.
    """
    found: dict[str, str] = {
        "diagnosis.json": json.dumps(document([diagnose(seen)]), indent=1),
        "facts.json": json.dumps(seen.to_answer(), indent=1, sort_keys=True),
    }
    absent: list[str] = []
    for name, line in {**COMMANDS, "nvidia-bug-report.txt": VENDORS_REPORT}.items():
        try:
            code, text = run(line)
        except GpuprovError as error:
            absent.append(f"{name}: {error}")
            continue
        if text.strip():
            found[name] = text[:REPORT_LIMIT]
        else:
            absent.append(f"{name}: `{line[:60]}` printed nothing (exit {code})")
    cleaned, hidden = {}, []
    for name, text in found.items():
        cleaned[name], counts = clean(text)
        hidden += [f"{name}: {count} {what} hidden" for what, count in counts.items()]
    told = [
        *(f"not looked at: {each}" for each in LEFT_OUT),
        *(f"not there: {each}" for each in absent),
        *hidden,
    ]
    cleaned["LEFT-OUT.txt"] = "\n".join(told) + "\n"
    _pack(path, cleaned)
    return told


def run_here(line: str) -> tuple[int, str]:
    """A line of shell on this machine."""
    try:
        done = subprocess.run(["/bin/sh", "-c", as_root(line)], capture_output=True, timeout=70, check=False)
    except subprocess.TimeoutExpired:
        raise NodeFailed("no answer in 70 s") from None
    return done.returncode, done.stdout.decode("utf-8", "replace")


def clean(text: str) -> tuple[str, dict[str, int]]:
    """The text without secrets and addresses, and how many of them were hidden."""
    counts: dict[str, int] = {}
    for pattern in _SECRETS:
        text, times = pattern.subn(rf"\g<1>{HIDDEN}", text)
        if times:
            counts["secrets"] = counts.get("secrets", 0) + times
    for what, pattern in _PERSONAL.items():
        known: dict[str, str] = {}
        text = pattern.sub(lambda m, w=what, k=known: _named(m[0], w, k), text)  # type: ignore[misc]
        if known:
            counts[what] = len(known)
    return text, counts


def _named(value: str, what: str, known: dict[str, str]) -> str:
    """The same name for the same value, so that what belongs together still does."""
    return known.setdefault(value, f"({what} {len(known) + 1})")


def _pack(path: Path, found: Mapping[str, str]) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in found.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"gpuprov-bundle/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    try:
        with path.open("xb") as file:
            path.chmod(0o600)
            file.write(buffer.getvalue())
    except FileExistsError:
        raise InvalidInput(f"{path} already exists", do="name another file") from None
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", do="name a file that can be written") from None
