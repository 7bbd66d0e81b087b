"""Options that describe one machine for the resolver, shared by `resolve` and `explain`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common import completion
from gpuprov.errors import InvalidInput

if TYPE_CHECKING:
    from gpuprov.catalog import Catalog
    from gpuprov.locking.resolve import Request

Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--gpu",
        "gpu",
        multiple=True,
        metavar="NAME",
        shell_complete=completion.gpus,
        help="PCI id, product or marketing name; `8x H200`; repeatable",
    ),
    click.option(
        "--os",
        "os",
        metavar="NAME",
        shell_complete=completion.systems,
        help="ubuntu24.04, debian12, rocky9.4, …",
    ),
    click.option("--arch", metavar="ARCH", help="x86_64, or aarch64 (arm64, sbsa)"),
    click.option("--driver", metavar="VERSION", help="branch (580) or full version (580.95.05)"),
    click.option("--cuda", metavar="VERSION", help="the host's toolkit: 12.8, 13.0.2, none"),
    click.option("--cudnn", metavar="VERSION"),
    click.option("--nccl", metavar="VERSION", help="2.27.3, or with its build: 2.27.3+cuda12.9"),
    click.option("--module", metavar="FLAVOUR", help="open or proprietary"),
    click.option("--module-build", metavar="HOW", help="dkms, or precompiled: Ubuntu's signed modules"),
    click.option("--container-toolkit", metavar="VERSION"),
    click.option("--fabric-manager", "--fabricmanager", "fabricmanager", metavar="VERSION"),
    click.option("--kernel", metavar="RELEASE", help="release of the kernel that boots next, as in uname -r"),
    click.option(
        "--framework", metavar="NAME==VERSION", help="torch==2.6.0, torch==2.6.0+cu126, tensorflow==2.15"
    ),
    click.option("--docker", metavar="VERSION", help="version of the Docker engine"),
    click.option("--podman", metavar="VERSION", help="version of Podman, or auto: the system's own"),
    click.option(
        "--gds", metavar="VERSION", help="GPUDirect Storage: version of nvidia-fs, or auto: the newest"
    ),
    click.option(
        "--doca-ofed", metavar="VERSION", help="release of DOCA with NVIDIA's RDMA drivers, or auto"
    ),
    click.option(
        "--compat", metavar="VERSION", help="forward-compatibility package by CUDA version, or none"
    ),
    click.option("--repository", metavar="ID", help="source of the driver: nvidia or distribution"),
    click.option(
        "--prefer", metavar="POLICY", help="policy for versions that are not stated: production, lts, newest"
    ),
)


def request_options(command: Command) -> Command:
    """Add the options of one request to a command; they have the names of `Request`'s fields."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def request_names() -> tuple[str, ...]:
    """Return the names of the parameters that `request_options` adds."""

    command = click.Command("request")
    request_options(command)
    return tuple(str(each.name) for each in reversed(command.params))


catalog_option = click.option(
    "--catalog-dir",
    "catalog_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="folder with the site's own catalog records; repeatable",
)


def read_request(stated: dict[str, Any]) -> Request:
    """Return the request of a command line.

    Args:
        stated: option → value, with the names of `Request`'s fields.

    Raises:
        InvalidInput: no GPU or no system is stated.
    """
    from gpuprov.locking.resolve import Request

    if not stated.get("gpu"):
        raise InvalidInput(
            "--gpu is missing",
            do='give --gpu for each model, such as --gpu "H100 SXM5 80GB"; `gpuprov catalog gpus` lists '
            "them; `gpuprov explain COMPONENT` without them reads the lock of the folder",
        )
    if not stated.get("os"):
        raise InvalidInput(
            "--os is missing", do="give for example --os ubuntu24.04; `gpuprov catalog os` lists them"
        )
    return Request.from_mapping({**stated, "gpu": list(stated["gpu"])})


def read_catalog(folders: tuple[Path, ...]) -> Catalog:
    """Return the catalog with the site's folders; raises as `gpuprov.catalog.load`."""
    from gpuprov.catalog import load

    return load(folders)
