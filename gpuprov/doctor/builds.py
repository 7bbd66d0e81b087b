"""The one cause of a failed build of a kernel module, from lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuprov.doctor.examination import LOG_LINE
from gpuprov.untrusted import ShellLine, shell


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: a pattern of the log's lines, what it means, and the actions against it.

    Attributes:
        name: for tests and bundles.
        pattern: searched in each line; without several repeats, because logs are untrusted.
        text: the cause in a sentence.
        mend: actions that come before the next build.
    """

    name: str
    pattern: re.Pattern[str]
    text: str
    mend: tuple[ShellLine, ...]
    example: str
    """A line of this cause, for test cases from bundles, which contain only its name."""


CAUSES = (
    Cause(
        "space",
        re.compile(r"No space left on device"),
        "no space is left for the build",
        (shell("df -h /var /tmp; sudo apt clean; sudo journalctl --vacuum-size=200M"),),
        "cc1: fatal error: error writing to /tmp/cc.s: No space left on device",
    ),
    Cause(
        "memory",
        re.compile(
            r"Killed signal terminated program|internal compiler error: Killed|Cannot allocate memory"
        ),
        "the compiler was ended for want of memory",
        (shell("free -g; build with fewer processes: sudo dkms install -j 1 …"),),
        "gcc: internal compiler error: Killed (program cc1)",
    ),
    Cause(
        "headers",
        re.compile(
            r"[Kk]ernel headers for kernel|kernel header files|[Kk]ernel source (?:files|tree|path)"
            r"|(?:generated|linux)/autoconf\.h"
            r"|(?:/build|/usr/src/\S{1,100}): No such file|KERNEL_UNAME|No rule to make target 'modules'"
        ),
        "the headers of this kernel are missing, or incomplete",
        (shell("sudo apt install --reinstall linux-headers-$(uname -r)   (dnf: kernel-devel-$(uname -r))"),),
        "Error! Your kernel headers for kernel 6.8.0 cannot be found.",
    ),
    Cause(
        "tool",
        re.compile(
            r"(?:gcc|g\+\+|cc|ld|make|clang|bison|flex|pahole)(?:-\d{1,2})?: (?:command )?not found"
            r"|\bsh: (?:line )?(?:\d{1,5}: )?\S{1,60}: (?:command )?not found"
            r"|(?:gcc|cc|clang|ld)(?:-\d{1,2})?: No such file|libelf-dev|gelf\.h|no acceptable C compiler"
        ),
        "a program that builds modules is missing: the compiler, make or libelf",
        (shell("sudo apt install build-essential libelf-dev   (dnf: gcc make elfutils-libelf-devel)"),),
        "/bin/sh: 1: gcc-12: not found",
    ),
    Cause(
        "compiler",
        re.compile(
            r"unrecognized (?:command[- ]line )?option|[Cc]ompiler version check failed"
            r"|Failed CC version check|gcc-version-check failed|not exactly match the current compiler"
            r"|plugin .{0,80}(?:not found|incompatible gcc)|incompatible gcc/plugin"
            r"|created by a different GCC"
        ),
        "the compiler is not the one that built this kernel",
        (
            shell("cat /proc/version   (names the kernel's compiler)"),
            shell("install that version of gcc, or a kernel of this system's own archive"),
        ),
        "cc: error: unrecognized command-line option '-ftrivial-auto-var-init=zero'",
    ),
    Cause(
        "signature",
        re.compile(r"sign-file|signing_key|PKCS7|MOK\.(?:priv|der)"),
        "the build ended at the signature: the key for Secure Boot is missing or cannot be read",
        (shell("sudo update-secureboot-policy --new-key   (or: the keys in /etc/dkms/framework.conf)"),),
        "sign-file: certs/signing_key.pem: No such file or directory",
    ),
    Cause(
        "licence",
        re.compile(r"GPL-incompatible module|uses GPL-only symbol"),
        "this kernel gives a symbol only to modules under the GPL: the driver is too old for it, or must be "
        "the open one",
        (shell("a newer driver of the branch, or the open module: gpuprov resolve --kernel KERNEL"),),
        "FATAL: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'x'",
    ),
    Cause(
        "source",
        re.compile(
            r"implicit declaration of function|has no member named|incompatible (?:pointer )?types?\b"
            r"|unknown type name|-W(?:error=)?(?:implicit-function-declaration|int-conversion)\b"
            r"|too (?:few|many) arguments|conflicting types|undeclared|redefinition of|no previous prototype"
            r"|passing argument|undefined!|fatal error: \S{1,100}: No such file"
        ),
        "this driver does not know this kernel: its source uses functions that the kernel has changed",
        (shell("a newer driver of the branch, or the former kernel: gpuprov resolve --kernel KERNEL"),),
        "nv.c:1:1: error: implicit declaration of function 'x'",
    ),
)
"""Causes in the order in which they explain each other: a full disk before the errors that it causes."""


def cause_of(lines: Iterable[str]) -> tuple[Cause, str] | None:
    """Return the first of `CAUSES` that a line states, and that line, cut to `LOG_LINE` characters; None if
    no line states one.
    """
    cut = [line[:LOG_LINE] for line in lines]
    for cause in CAUSES:
        for line in cut:
            if cause.pattern.search(line):
                return cause, line
    return None
