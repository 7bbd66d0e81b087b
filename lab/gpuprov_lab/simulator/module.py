"""Kernel modules that contain only their identity: quick to make, readable by the real modinfo."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_RELOCATABLE, _X86_64 = 1, 62
_PROGRAM_DATA, _STRING_TABLE, _ALLOCATED = 1, 3, 2

ALIAS = "pci:v000010DEd*sv*sd*bc03sc*i00*"
"""PCI ids of the GPUs that NVIDIA's module drives."""


def stub_module(version: str, *, kernel: str, name: str = "nvidia", licence: str = "NVIDIA") -> bytes:
    """Return an ELF object with nothing but a `.modinfo` section, which the real modinfo reads.

    Args:
        version: the output of `modinfo -F version`.
        kernel: release of the kernel in its `vermagic`.
        name: the module's own name, `nvidia` or `nvidia_uvm`.
        licence: "NVIDIA" for the proprietary module, "Dual MIT/GPL" for the open one.
    """
    fields = {
        "version": version,
        "license": licence,
        "name": name,
        "vermagic": f"{kernel} SMP preempt mod_unload modversions",
    }
    if name == "nvidia":
        fields["alias"] = ALIAS
    information = b"".join(f"{key}={value}\0".encode() for key, value in fields.items())
    # A leading empty string, so that every field is between two zero bytes.
    return _elf({".modinfo": b"\0" + information})


def _elf(contents: dict[str, bytes]) -> bytes:
    """Return a relocatable x86-64 object with these sections, after the empty first
    one and before the names.
    """
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*contents, ".shstrtab"])
    sections = [_SECTION.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
    body = b""
    for name, content in [*contents.items(), (".shstrtab", names)]:
        kind, flags = (_STRING_TABLE, 0) if name == ".shstrtab" else (_PROGRAM_DATA, _ALLOCATED)
        place = names.index(name.encode() + b"\0")
        sections.append(
            _SECTION.pack(place, kind, flags, 0, _HEADER.size + len(body), len(content), 0, 0, 1, 0)
        )
        body += content
    body += b"\0" * (-len(body) % 8)
    header = _HEADER.pack(
        *(b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), _RELOCATABLE, _X86_64, 1, 0, 0, _HEADER.size + len(body)),
        *(0, _HEADER.size, 0, 0, _SECTION.size, len(sections), len(sections) - 1),
    )
    return header + body + b"".join(sections)
