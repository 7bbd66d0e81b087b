"""Names that a machine reports about itself, each with the pattern that it must match.

The functions accept any value, also one that is not a string, and return the text as a distinct type. They
raise `NodeFailed` with the value and with what was expected.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.gates import COMPONENT, shown

KernelRelease = NewType("KernelRelease", str)
Vermagic = NewType("Vermagic", str)
CompilerLine = NewType("CompilerLine", str)
HostName = NewType("HostName", str)
DeviceName = NewType("DeviceName", str)
UnitName = NewType("UnitName", str)
PackageName = NewType("PackageName", str)
Version = NewType("Version", str)
FileName = NewType("FileName", str)
ModuleName = NewType("ModuleName", str)
AbsolutePath = NewType("AbsolutePath", str)
Architecture = NewType("Architecture", str)

# uname(2) has a field of 64 bytes for it. Every match is a single component of a path.
_RELEASE: Final = r"[0-9]{1,5}\.[0-9]{1,5}[A-Za-z0-9._+~-]{0,52}"
# include/linux/vermagic.h: the release, then flags (SMP, preempt, mod_unload, modversions, aarch64,
# RANDSTRUCT_ and a digest), each followed by a blank.
_VERMAGIC: Final = rf"{_RELEASE}(?: [A-Za-z0-9_]{{1,80}}){{0,12}} ?"
_LABEL: Final = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_UNIT: Final = (
    r"(?:[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,240}|-)"
    r"\.(?:service|socket|target|timer|mount|automount|path|slice|scope|swap|device)"
)


def _named(text: object, pattern: str, what: str, expected: str) -> str:
    """Return the text if the whole of it matches the pattern; only ASCII counts as letters and digits.

    Args:
        what: name of the value for the message, such as `the release of a kernel`.
        expected: examples or allowed characters, for the message.

    Raises:
        NodeFailed: it does not match, or is not a string.
    """
    if isinstance(text, str) and re.fullmatch(pattern, text, re.ASCII):
        return text
    raise NodeFailed(f"{shown(text)} as {what}", expected=expected)


def kernel_release(text: object) -> KernelRelease:
    """Return a kernel's release, as `uname -r` prints it: `6.1.0-56-amd64`.

    Two numbers with a dot, then up to 52 letters, digits and characters of `._+~-`.

    Raises:
        NodeFailed: another value.
    """
    return KernelRelease(_named(text, _RELEASE, "the release of a kernel", "6.1.0-56-amd64 or the like"))


def is_kernel_release(text: object) -> bool:
    """Return whether a value matches the pattern of `kernel_release`.

    It selects releases in lists with other entries, such as folders or images.
    """
    return isinstance(text, str) and re.fullmatch(_RELEASE, text, re.ASCII) is not None


def architecture(text: object) -> Architecture:
    """Return a machine's architecture, as `uname -m` prints it: up to 20 lower-case letters, digits and `_`.

    Raises:
        NodeFailed: another value.
    """
    return Architecture(_named(text, r"[a-z0-9_]{1,20}", "an architecture", "x86_64, aarch64 or the like"))


def vermagic(text: object) -> Vermagic:
    """Return a module's vermagic: a kernel's release and up to 12 flags, with at most one blank at the end.

    Raises:
        NodeFailed: another value.
    """
    expected = "6.1.0-56-amd64 SMP preempt mod_unload modversions or the like"
    return Vermagic(_named(text, _VERMAGIC, "the vermagic of a module", expected))


def compiler_line(text: object) -> CompilerLine:
    """Return the kernel's CONFIG_CC_VERSION_TEXT: `gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0`.

    It begins with a letter, has at most 200 letters, digits, blanks and characters of `()._+~:,/@-`, and no
    `..`.

    Raises:
        NodeFailed: another value.
    """
    expected = "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0 or the like"
    pattern = r"(?!.*\.\.)[A-Za-z][A-Za-z0-9 ()._+~:,/@-]{0,199}"
    return CompilerLine(_named(text, pattern, "the compiler of a kernel", expected))


def host_name(text: object) -> HostName:
    """Return a host name: labels of letters, digits, `-` and `_`, at most 253 characters.

    A label has at most 63 characters and does not begin with `-`; there is no dot at the end.

    Raises:
        NodeFailed: another value.
    """
    pattern = rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*"
    return HostName(_named(text, pattern, "a host name", "labels of letters, digits and hyphens"))


def device_name(text: object) -> DeviceName:
    """Return the name of a device or a network interface: `nvme0n1`, `mlx5_0`, `ib0.8001`, a PCI address.

    It begins with a letter or digit; up to 127 letters, digits and characters of `_.:@+=-` follow.

    Raises:
        NodeFailed: another value.
    """
    pattern = r"[A-Za-z0-9][A-Za-z0-9_.:@+=-]{0,127}"
    return DeviceName(
        _named(text, pattern, "the name of a device", "mlx5_0, nvme0n1, 0000:3b:00.0 or the like")
    )


def unit_name(text: object) -> UnitName:
    """Return the name of a systemd unit with its type: `docker.service`, `getty@tty1.service`.

    Raises:
        NodeFailed: another value, such as a name without a type or with a leading `-` (except `-.mount`,
            `-.slice`).
    """
    return UnitName(_named(text, _UNIT, "the name of a systemd unit", "docker.service or the like"))


def package_name(text: object) -> PackageName:
    """Return the name of a package of dpkg, RPM or PyPI, optionally with `:arch`: `libcuda1:amd64`.

    Raises:
        NodeFailed: another value, such as a name with more than 128 characters.
    """
    pattern = r"[A-Za-z0-9][A-Za-z0-9+._-]{0,127}(?::[a-z0-9][a-z0-9-]{0,19})?"
    expected = "letters, digits and + . _ -"
    return PackageName(_named(text, pattern, "the name of a package", expected))


def version(text: object) -> Version:
    """Return the version of a package of dpkg, RPM or PyPI: `1:2.36-9+deb12u1`.

    It begins with a letter or digit; up to 127 letters, digits and characters of `.+:~^_-` follow.

    Raises:
        NodeFailed: another value.
    """
    pattern = r"[A-Za-z0-9][A-Za-z0-9.+:~^_-]{0,127}"
    return Version(_named(text, pattern, "the version of a package", "letters, digits and . + : ~ ^ _ -"))


def file_name(text: object) -> FileName:
    """Return the name of one file without its folder.

    It has up to 255 characters, no `/`, no blank, and no leading `.` or `-`.

    Raises:
        NodeFailed: another value; `COMPONENT` has the pattern.
    """
    expected = "letters, digits and . _ + @ = , : ~ -, without . or - in front"
    return FileName(_named(text, COMPONENT, "the name of a file", expected))


def module_name(text: object) -> ModuleName:
    """Return the name of a kernel module, without `.ko`: up to 64 letters, digits, `_` and `-`.

    Raises:
        NodeFailed: another value, such as a name that begins with `-`.
    """
    pattern = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}"
    return ModuleName(_named(text, pattern, "the name of a kernel module", "letters, digits, _ and -"))


def absolute_path(text: object) -> AbsolutePath:
    """Return a path from the root: printable characters, no component `.` or `..`, at most 4096 characters.

    Blanks, quotes and braces are legal in paths: the path still needs the gate of its interpreter. The disk
    is not accessed.

    Raises:
        NodeFailed: another value.
    """
    path = _named(text, r"(?s)/.{0,4095}", "an absolute path", "a path that begins with /")
    if not path.isprintable() or {".", ".."} & set(path.split("/")):
        raise NodeFailed(f"{shown(path)} as an absolute path", expected="printable characters, no . or ..")
    return AbsolutePath(path)
