"""`host.libraries`: CUDA toolkits, cuDNN and NCCL as a program on the node finds them."""

from __future__ import annotations

import re

from gpuprov.verify.modules.base import Observed

CUDNN_HEADERS = (
    "cat /usr/include/cudnn_version.h /usr/include/*/cudnn_version*.h 2>/dev/null"
    " | grep -m3 -E '^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) '"
)
LIBRARY_FILES = "ls -1 /usr/lib/*-linux-gnu/%s.so.* /usr/lib64/%s.so.* /usr/local/lib/%s.so.* 2>/dev/null"


class Libraries(Observed):
    """Test what stands on the driver.

    >>> host.libraries.nvcc("/usr/local/cuda-12.8")
    '12.8'
    >>> host.libraries.versions("libnccl")
    ['2.29.7']
    """

    def nvcc(self, home: str) -> str | None:
        """The release that a toolkit's compiler says it is; None where it does not run."""
        found = re.search(r"release (\d+\.\d+)", self.run(f"{home}/bin/nvcc --version").stdout)
        return found[1] if found else None

    @property
    def compiler_of_logins(self) -> str | None:
        """The nvcc that a fresh login finds."""
        return self.run("bash -lc 'command -v nvcc'").stdout.strip() or None

    @property
    def default_toolkit(self) -> str:
        """The folder that /usr/local/cuda leads to in the end."""
        return str(self.run("readlink --canonicalize /usr/local/cuda").stdout.strip())

    @property
    def cudnn_header(self) -> str | None:
        """Major, minor and patch level by cuDNN's own header."""
        return ".".join(re.findall(r"CUDNN_\w+ (\d+)", self.run(CUDNN_HEADERS).stdout)) or None

    def versions(self, library: str) -> list[str]:
        """Full versions in the names of a library's files: `2.29.7` of libnccl.so.2.29.7."""
        names = self.run(LIBRARY_FILES.replace("%s", library)).stdout.split()
        return sorted(
            {name.partition(".so.")[2] for name in names if name.count(".", name.find(".so.") + 4) >= 2}
        )

    @property
    def nccl_configuration(self) -> dict[str, str]:
        """Settings of /etc/nccl.conf."""
        lines = self.run("grep -E '^[A-Z_]+=' /etc/nccl.conf").stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def __repr__(self) -> str:
        return "<libraries>"
