"""Commands that remove one setting from a file and keep the rest of it.

Paths and names come from the machine: they are quoted; for other than plain names the line is a description.
"""

from __future__ import annotations

import re

from gpuprov.untrusted import ShellLine, shell


def without_variable(path: str, name: str) -> ShellLine:
    """Return `sudo sed -i -E '/^…NAME=/d' FILE`: for files of NAME=VALUE, with or without `export`."""
    if not re.fullmatch(r"\w+", name, re.ASCII):
        return shell("remove the line from {}", path)
    return _sed(rf"/^[[:space:]]*(export[[:space:]]+)?{name}=/d", path)


def without_folder(path: str, name: str, folder: str) -> ShellLine:
    """Return the command that removes folders with that last name (`compat`) from a variable that is a list
    of folders.
    """
    where = rf"/^[[:space:]]*(export[[:space:]]+)?{name}=/"
    after = rf's#:[^:="]*/{folder}(:|"|$)#\1#g'
    first = rf's#(="?)[^:="]*/{folder}(:|("|$))#\1\3#'
    return _sed(f"{where}{{{after};{first}}}", path)


def without_line(place: str) -> ShellLine:
    """Return `sudo sed -i 7s/^/#/ FILE` for a place FILE:7; for other places a description."""
    path, _, number = place.rpartition(":")
    if path and re.fullmatch("[0-9]{1,9}", number):
        return _sed(f"{number}s/^/# /", path)
    return shell("remove it from: {}", place)


def without_text(path: str, text: str) -> ShellLine:
    """Return the command that deletes the lines with exactly this text from a file. A description instead if
    the text has a `|` or is not printable.
    """
    if "|" in text or not text.isprintable():  # sed's delimiter; characters that no shell line can have
        return shell("remove the line {} from {}", text, path)
    literal = re.sub(r"([][\\.*^$+?(){}])", r"\\\1", text)
    return _sed(rf"\|^[[:space:]]*{literal}[[:space:]]*$|d", path)


def with_kernel_option(option: str, entries: bool) -> tuple[ShellLine, ...]:
    """Return the lines that add an option to the kernel's command line at each boot.

    Args:
        entries: whether options are in boot entries, which grubby changes, and not in a generated grub.cfg.
    """
    if entries:
        return shell("sudo grubby --update-kernel=ALL --args={}", option), shell("sudo reboot")
    return (
        shell("add {} to GRUB_CMDLINE_LINUX in /etc/default/grub", option),
        shell("sudo update-grub, sudo reboot"),
    )


def _sed(script: str, path: str) -> ShellLine:
    """Return the command that edits a file in place by a sed script."""
    return shell("sudo sed -i -E {} {}", script, path)
