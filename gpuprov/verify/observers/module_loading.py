"""`host.module_loading`: what modprobe would load, and what keeps a new kernel from its module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from gpuprov.roles.nvidia_driver import (
    BLS_ENTRIES,
    BLS_GUARD,
    BLS_HOOKS,
    DKMS_FOLDERS,
    DKMS_HOOKS,
    FILES,
    FOREIGN_MODULES,
    GUARD,
    LOADED,
    NARROWING,
)
from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.nvidia_driver import INITRAMFS

REQUEST = "modprobe -S %s -b --show-depends %s"
OF_INSTALL_LINE = "modprobe -S %s -i --show-depends %s"
NAMES_MAX = 8
"""Maximum number of modules in the install lines of one request."""
SHOWN = 80
"""Characters of a command that are reported."""
DEVICES_MAX = 4
"""Maximum number of kinds of GPUs."""
DEVICES = (
    "grep -hsxE 'pci:v000010DE[[:alnum:]]+bc03[[:alnum:]]+' /sys/bus/pci/devices/*/modalias"
    f" | sort -u | head -{DEVICES_MAX}"
)
BOOT_LINES = (
    r"grep -hsE '^\s*linux\w*\s+\S*/vmlinuz-' /boot/grub/grub.cfg;"
    " for each in /boot/loader/entries/*.conf; do [ ! -e $each ]"
    ' || echo $(sed -n "s/^linux //p" $each) $(sed -n "s/^options //p" $each); done'
)
HOOKS = (
    "for each in /etc/kernel/postinst.d /etc/kernel/header_postinst.d; do run-parts --test $each; done;"
    " find /etc/kernel/install.d -name '*.install' -type f -perm /111 2>/dev/null;"
    " for each in /usr/lib/kernel/install.d/*.install; do"
    " [ -e /etc/kernel/install.d/${each##*/} ] || [ ! -x $each ] || echo $each; done;"
    " [ -x /usr/lib/dkms/dkms_autoinstaller ]"
    " || grep -ls dkms_autoinstaller /etc/kernel/*postinst.d/dkms | sed 's/^/idle /'"
)
ADDED = (
    "grep -qsE '^[[:space:]]*(nvidia|(add|force)_drivers[+]?=.*nvidia)' /etc/initramfs-tools/modules"
    " /usr/share/initramfs-tools/modules.d/* /etc/dracut.conf /etc/dracut.conf.d/*.conf"
    " /usr/lib/dracut/dracut.conf.d/*.conf"
)
OLDER = (
    "for image in /boot/initrd.img-%s /boot/initramfs-%s.img; do [ ! -e $image ]"
    ' || [ ! "$(modinfo -k %s -F filename %s)" -nt $image ] || echo $image; done'
)
NVIDIA_FILE = re.compile(r"/nvidia(?:[-_](?:current|tesla|open|uvm|modeset|drm|peermem|\d+))*\.ko")
# The order of dkms(8): the framework's files; the source's file, then those of the site.
# The order of dracut.conf(5).
DRACUT = """bash -c '
command -v dracut >/dev/null || exit 0
set -f; shopt -u failglob
[ ! -e /etc/dracut.conf ] || . /etc/dracut.conf
folders="/etc/dracut.conf.d /usr/lib/dracut/dracut.conf.d"
for name in $(ls $folders 2>/dev/null | grep "[.]conf$" | sort -Vu); do
    for file in ${folders% *}/$name ${folders#* }/$name; do
        if [ -e "$file" ]; then . "$file"; break; fi
    done
done
echo omitted $omit_drivers; echo added $add_drivers $force_drivers'"""
DKMS = """bash -c '
for file in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do [ ! -e "$file" ] || . "$file"; done
printf "%%s\\n" "dkms_tree $dkms_tree" "source_tree $source_tree" "install_tree $install_tree"
for source in /var/lib/dkms/nvidia*/$1/source; do
    [ -e "$source/dkms.conf" ] || continue
    name=${source#/var/lib/dkms/}; name=${name%%%%/*}
    for file in "$source/dkms.conf" "/etc/dkms/$name.conf" "/etc/dkms/$name-$1.conf"; do
        [ ! -e "$file" ] || . "$file"
    done
    echo "AUTOINSTALL $AUTOINSTALL"
done' bash %s 2>/dev/null"""
BLACKLISTING = re.compile(r"(?:modprobe\.blacklist|module_blacklist)=")


class ModuleLoading(Observed):
    """Test what modprobe does with requests for NVIDIA's modules.

    >>> host.module_loading.hindrances("6.1.0-56-amd64")
    []

    Raises:
        NodeFailed: any method but `loaded_as`, if modprobe, dracut or DKMS cannot be asked, as `ask`.
    """

    def loaded_as(self, kernel: str) -> str | None:
        """Return the name of the file that a request for nvidia loads under a kernel, or None."""
        files = (
            what.rpartition("/")[2].partition(".ko")[0]
            for verb, what in self._requested(kernel, "nvidia")
            if verb == "insmod"
        )
        return next(filter(FILES["nvidia"].fullmatch, files), None)

    def hindrances(self, kernel: str) -> list[str]:
        """Return what keeps modprobe from loading the driver as it is under a kernel that has it: blacklists,
        failing requests, and options that take GPUs or links away; [] if nothing does.
        """
        shut = [name for name in LOADED if name.replace("-", "_") in self._shut(kernel)]
        found = [f"{name} is blacklisted on the kernel's command line" for name in shut]
        asked = {name: self._result(kernel, name, name) for name in LOADED if name not in shut}
        refused = {name: result for name, result in asked.items() if result}
        if refused.get("nvidia") == refused.get("nvidia-uvm"):
            refused.pop("nvidia-uvm", None)
        found += [f"{name} {result}" for name, result in refused.items()]
        if not refused and not shut:
            results = (self._result(kernel, device, "nvidia") for device in self._devices)
            found += [f"a GPU's PCI id {result}" for result in results if result]
        found += narrowing(self.ask("modprobe --showconfig"))
        return [f"{text} (kernel {kernel})" for text in found]

    def old_initramfs(self, kernel: str) -> list[str]:
        """Return the kernel's initramfs in a list if it has modules of NVIDIA's and is older than the module.

        Listing its content takes seconds, and is only done if it is older and a setting adds such modules.
        """
        name = self.loaded_as(kernel)
        if name is None or not self.run(ADDED).succeeded:
            return []
        image = self.run(OLDER, kernel, kernel, kernel, name).stdout.strip()
        inside = image and NVIDIA_FILE.search(self.ask(INITRAMFS, kernel, kernel))
        return [image] if inside else []

    def obstacles(self, version: str | None) -> list[str]:
        """Return what keeps a new kernel from its module: hooks, dracut's settings, and DKMS; [] if nothing
        does.

        Args:
            version: of the driver that DKMS has to build; None if it has not.
        """
        by_entries = self.run("test -d %s", BLS_ENTRIES).succeeded
        answer = self.run(HOOKS).stdout.splitlines()
        runs = {*answer} - {line.removeprefix("idle ") for line in answer if line.startswith("idle ")}
        found = []
        if by_entries:
            found += [] if BLS_GUARD in runs else [f"{BLS_GUARD} does not run"]
        elif not self._host.file(GUARD).is_file:
            found.append(f"{GUARD} is missing")
        found += foreign_drivers(self.ask(DRACUT))
        if version is None:
            return found
        if not self.run("command -v dkms").succeeded:
            return [*found, "dkms is not installed"]
        if self._host.file("/etc/dkms/no-autoinstall").is_file:
            found.append("DKMS is switched off")
        hooks = BLS_HOOKS if by_entries else DKMS_HOOKS
        found += [f"{hook} does not run" for hook in hooks if hook not in runs]
        return [*found, *settings(self.ask(DKMS, version), version)]

    def _result(self, kernel: str, name: str, wanted: str) -> str:
        """Return what modprobe does with a request in place of loading a module; "" if it loads it, and no
        foreign module first.
        """
        last = ""
        for verb, what in self._requested(kernel, name):
            module = what.rpartition("/")[2].partition(".ko")[0]
            if verb == "install":
                return f"runs {what[:SHOWN]}"
            if FILES[wanted].fullmatch(module):
                return "" if self._host.file(what).exists else "has no file"
            last = module.replace("-", "_")
            if last in FOREIGN_MODULES:
                return f"loads {last} first"
        return f"loads {last}" if last else "loads nothing"

    def _requested(self, kernel: str, name: str) -> Iterator[tuple[str, str]]:
        """Yield what modprobe would do with a request for a module or a device, blacklists included."""
        return self._lines(self.run(REQUEST, kernel, name).stdout, kernel, {name})

    def _lines(self, text: str, kernel: str, asked: set[str]) -> Iterator[tuple[str, str]]:
        """Yield `insmod` and a file, or `install` and a command, of a dry run's output.

        A modprobe in an install line is run on the node in turn, once for each of at most `NAMES_MAX`
        modules.
        """
        for line in lines_of(text):
            verb, _, rest = line.strip().partition(" ")
            if verb == "insmod":
                yield verb, rest.partition(" ")[0]
            for command in re.split(r"[;&|]+", rest) if verb == "install" else ():
                target = loaded_by(command)
                if target is None and command.strip():
                    yield verb, command.strip()
                elif target and target not in asked and len(asked) < NAMES_MAX:
                    asked.add(target)
                    request = OF_INSTALL_LINE if "-i" in command else REQUEST
                    yield from self._lines(self.run(request, kernel, target).stdout, kernel, asked)

    def _shut(self, kernel: str) -> set[str]:
        """Return the modules that a kernel's command line blacklists, in the kernel's spelling."""
        boot = [line for line in self._boot_lines if f"/vmlinuz-{kernel} " in f"{line} "][:1]
        now = (
            [] if boot and kernel != self.ask("uname -r").strip() else [self.run("cat /proc/cmdline").stdout]
        )
        words = " ".join((*boot, *now)).split()
        values = [word.partition("=") for word in words if BLACKLISTING.match(word)]
        return {name.replace("-", "_") for _, _, names in values for name in names.split(",")}

    @cached_property
    def _boot_lines(self) -> list[str]:
        """Lines of grub.cfg, or of the boot entries, that load a kernel."""
        lines: list[str] = self.run(BOOT_LINES).stdout.splitlines()
        return lines

    @cached_property
    def _devices(self) -> list[str]:
        """Modaliases of NVIDIA's GPUs, at most `DEVICES_MAX`."""
        return list(islice(filter(None, lines_of(self.run(DEVICES).stdout)), DEVICES_MAX))

    def __repr__(self) -> str:
        return "<module_loading>"


def loaded_by(command: str) -> str | None:
    """Return the module that a command of an install line loads with modprobe; None for other commands."""
    program, *words = command.split() or [""]
    names = [word for word in words if not word.startswith(("-", "$")) and "=" not in word]
    return names[0] if names and program.rpartition("/")[2] == "modprobe" else None


def narrowing(config: str) -> list[str]:
    """Return the options in the output of `modprobe --showconfig` that take GPUs or links away."""
    rows = [line.split() for line in lines_of(config) if line.startswith("options nvidia")]
    words = [
        word.partition("=") for _, module, *rest in rows if FILES["nvidia"].fullmatch(module) for word in rest
    ]
    values = {option: value.strip("\"'") for option, _, value in words}
    return [
        f"{option}={values[option]}"
        for option in values
        if option in NARROWING and values[option] not in ("", "0")
    ]


def foreign_drivers(text: str) -> list[str]:
    """Return which of `FOREIGN_MODULES` dracut does not omit, and which it adds.

    Args:
        text: two lines, `omitted` and `added` with the names of modules; empty without dracut.
    """
    found = {"omitted": "", "added": ""}
    found.update((name, words) for name, _, words in (line.partition(" ") for line in lines_of(text)))
    omitted, added = ({*found[name].replace("-", "_").split()} for name in ("omitted", "added"))
    missing = [name for name in FOREIGN_MODULES if text.strip() and name not in omitted]
    return [
        *(f"dracut does not omit {name}" for name in missing),
        *(f"dracut adds {name}" for name in FOREIGN_MODULES if name in added),
    ]


def settings(text: str, version: str) -> list[str]:
    """Return the settings, as bash reads them from DKMS's files, with which it does not build a version."""
    rows = [line.partition(" ") for line in lines_of(text)]
    places = {name: value for name, _, value in rows if name in DKMS_FOLDERS}
    builds = [value for name, _, value in rows if name == "AUTOINSTALL"]
    found = [
        f"{name} is {value}"
        for name, value in places.items()
        if value.rstrip("/") not in ("", DKMS_FOLDERS[name], f"/usr{DKMS_FOLDERS[name]}")
    ]
    found += [] if builds else [f"DKMS does not have driver {version}"]
    return [
        *found,
        *(f"AUTOINSTALL is {value or 'not set'}" for value in builds if value[:1] not in ("y", "Y")),
    ]
