"""`host.libraries`: CUDA toolkits, cuDNN and NCCL as a program on the node finds them."""

from __future__ import annotations

import re

from gpuprov.roles.nccl import for_root_alone
from gpuprov.untrusted import lines_of
from gpuprov.verify.observers.base import Observed
from gpuprov.verify.observers.user_files import text_of

CUDNN_HEADERS = (
    "cat /usr/include/cudnn_version.h /usr/include/*/cudnn_version*.h 2>/dev/null"
    " | grep -m3 -E '^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) '"
)
# Prints the paths in `found` that no package owns. A package's file is in one of dpkg's lists, which are read
# once, under either name if /lib is a link.
_WITHOUT_PACKAGE = (
    " owned=$(printf '%%s\\n' $found | sed 'p;s#^/usr##' | grep -hsxFf - /var/lib/dpkg/info/*.list);"
    ' for each in $found; do printf \'%%s\\n\' "$owned" | grep -qxF -e "$each" -e "${each#/usr}"'
    ' || rpm -qf "$each" >/dev/null 2>&1 || echo "$each"; done'
)
# Regular files that a program would load: the linker's cache, its search folders with those of processors'
# capabilities (ld.so(8)), and LD_LIBRARY_PATH. An empty file is no library. Only words that begin with a
# slash reach find: others could be its expressions.
UNPACKAGED = (
    "set -- /usr/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/local/lib /usr/local/lib64"
    " $({ printf '%%s\\n' %s; sed -n 's#^/#/#p' /etc/ld.so.conf /etc/ld.so.conf.d/*.conf 2>/dev/null; }"
    " | tr ': \\t' '\\n\\n\\n' | grep '^/');"
    " found=$(for each in $( { ldconfig -p | sed -n 's/.*=> //p';"
    " find \"$@\" -maxdepth 1 -name 'lib*.so*' 2>/dev/null;"
    " find \"$@\" -mindepth 3 -maxdepth 3 -path '*/glibc-hwcaps/*/lib*.so*' 2>/dev/null; }"
    " | grep -E '/lib(cuda|nvidia-ml|cudnn[_a-z]*|nccl|cudart|cublas[a-zA-Z]*)\\.so'"
    " | xargs -r realpath -e 2>/dev/null | sort -u; ls -d /usr/local/cuda-[0-9]* /usr/bin/nvidia-uninstall"
    " /usr/bin/nvidia-installer /usr/local/bin/nvidia-uninstall 2>/dev/null);"
    ' do [ ! -s "$each" ] || [ -L "$each" ] || echo "$each"; done);' + _WITHOUT_PACKAGE
)
# nvidia-smi as each PATH finds it, if that is not in a folder of the system's programs.
PROGRAMS = (
    "found=$(for each in {paths}; do (PATH=$each; command -v nvidia-smi); done | grep '^/'"
    " | grep -vE '^(/usr)?/s?bin/[^/]*$' | xargs -r realpath -e 2>/dev/null | sort -u);" + _WITHOUT_PACKAGE
)
PRELOADED = (
    "found=$(for each in $( { sed 's/#.*//' /etc/ld.so.preload 2>/dev/null; printf '%%s\\n' %s; }"
    " | tr ': ' '\\n\\n' | grep '^/' | xargs -r realpath -e 2>/dev/null | sort -u);"
    ' do [ ! -s "$each" ] || echo "$each"; done);' + _WITHOUT_PACKAGE
)
SYSTEM_NCCL = "cat /etc/nccl.conf"
CLOSED_NCCL = "find -L /etc/nccl.conf -maxdepth 0 ! -perm -004"
"""Command that prints the path if only root can read it."""
LIBRARY_FILES = "ls -1 /usr/lib/*-linux-gnu/%s.so.* /usr/lib64/%s.so.* /usr/local/lib/%s.so.* 2>/dev/null"


class Libraries(Observed):
    """Observer of the software above the driver.

    >>> host.libraries.nvcc("/usr/local/cuda-12.8")
    '12.8'
    >>> host.libraries.versions("libnccl")
    ['2.29.7']
    """

    def nvcc(self, home: str) -> str | None:
        """Return the release that the compiler in a toolkit's folder prints; None if it does not run."""
        found = re.search(r"release (\d+\.\d+)", self.run("%s/bin/nvcc --version", home).stdout)
        return found[1] if found else None

    @property
    def compiler_of_logins(self) -> str | None:
        """The path of the nvcc that a fresh bash login finds; None if it finds none."""
        return self.run("bash -lc 'command -v nvcc'").stdout.strip() or None

    @property
    def default_toolkit(self) -> str:
        """The folder to which /usr/local/cuda resolves; that path itself if it does not exist."""
        return str(self.run("readlink --canonicalize /usr/local/cuda").stdout.strip())

    @property
    def cudnn_header(self) -> str | None:
        """Major, minor and patch level in cuDNN's own header, `9.8.0`; None without a header."""
        rows = (line.split() for line in lines_of(self.run(CUDNN_HEADERS).stdout))
        return ".".join(row[2] for row in rows if len(row) > 2 and row[2].isdecimal()) or None

    def versions(self, library: str) -> list[str]:
        """Return the full versions in the names of a library's files: `2.29.7` of libnccl.so.2.29.7.

        Sorted as text. Names with fewer than three numbers, such as libnccl.so.2, are ignored. Empty without
        any file.

        Args:
            library: such as `libnccl`.
        """
        names = self.run(LIBRARY_FILES.replace("%s", library)).stdout.split()
        return sorted(
            {name.partition(".so.")[2] for name in names if name.count(".", name.find(".so.") + 4) >= 2}
        )

    def nccl_configuration(self, home: str | None = None) -> dict[str, str]:
        """Return the settings `NAME=VALUE` in NCCL's file, of a name the first; empty without such a file.

        Args:
            home: a home folder, whose .nccl.conf is read unless it is another user's link; None: the system's
                /etc/nccl.conf.
        """
        text = text_of(self._host, f"{home}/.nccl.conf") if home else self.run(SYSTEM_NCCL).stdout
        rows = re.findall(r"(?m)^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", text)
        return {name: value.rstrip() for name, value in reversed(rows)}

    def nccl_homes(self, login: str) -> list[str]:
        """Return the home folders of root and of the login, and the model of new ones, each once.

        An unknown login has none.
        """
        homes = self.run("getent passwd root %s | cut -d: -f6", login).stdout.split()
        return list(dict.fromkeys([*homes, "/etc/skel"]))

    def nccl_variables(self, login: str) -> set[str]:
        """Return the names of all variables `NCCL_…` that are set in an environment or a file of NCCL's.

        Args:
            login: as for `nccl_setting`.
        """
        environments = self._host.tuning.everywhere
        files = [self.nccl_configuration(home) for home in (None, *self.nccl_homes(login))]
        return {name for given in (*environments, *files) for name in given if name.startswith("NCCL_")}

    def nccl_setting(self, name: str, wanted: str | None, login: str) -> str | None:
        """Return NCCL's effective value of a setting; None if it is not set.

        A variable of a login or service overrides the users' own files, which override the system's. Of
        several values one that differs from `wanted` is returned. If NCCL_CONF_FILE names another file, the
        result is a text with its path.

        Args:
            name: name of the variable, such as `NCCL_DEBUG`.
            wanted: the expected value; None: none.
            login: user whose file counts in addition to root's and that of new users (/etc/skel).
        """
        variable: str | None = self._host.tuning.variable(name, wanted)
        if variable is not None:
            return variable
        if other := self._host.tuning.variable("NCCL_CONF_FILE", None):
            return f"as {other} says"
        for home in self.nccl_homes(login):
            own = self.nccl_configuration(home).get(name, wanted)
            if own != wanted:
                return own
        value = self.nccl_configuration().get(name)
        return for_root_alone(value) if self.run(CLOSED_NCCL).stdout else value

    def unpackaged(self, *stems: str) -> list[str]:
        """Return paths of libraries, toolkits and a runfile's programs that belong to no package.

        They are those that a program would load: in the linker's cache and folders, LD_LIBRARY_PATH of logins
        and services, and /usr/local. Links and empty files are ignored.

        Args:
            stems: beginnings of the files' names.
        """
        found = self.run(UNPACKAGED, self._everywhere("LD_LIBRARY_PATH")).stdout.split()
        return [path for path in found if path.rpartition("/")[2].startswith(stems)]

    @property
    def programs(self) -> list[str]:
        """Paths of nvidia-smi without a package that PATH of any process finds before the driver's."""
        paths = self._values("PATH")
        command = PROGRAMS.replace("{paths}", " ".join(["%s"] * len(paths)))
        return list(self.run(command, *paths).stdout.split())

    @property
    def preloaded(self) -> list[str]:
        """Paths of the libraries without a package that every program loads first; links are resolved.

        They are in /etc/ld.so.preload, or in LD_PRELOAD of logins and services.
        """
        return list(self.run(PRELOADED, self._everywhere("LD_PRELOAD")).stdout.split())

    def _everywhere(self, name: str) -> str:
        """Return a variable's different values in all kinds of processes, joined with colons; maybe empty."""
        return ":".join(self._values(name))

    def _values(self, name: str) -> list[str]:
        """Return a variable's different values in all kinds of processes, without empty ones."""
        given = (each.get(name) for each in self._host.tuning.everywhere)
        return list(dict.fromkeys(filter(None, given)))

    def __repr__(self) -> str:
        return "<libraries>"
