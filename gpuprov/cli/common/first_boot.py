"""Options of a machine's first boot, for `gpuprov inventory export cloud-init`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.errors import InvalidInput

if TYPE_CHECKING:
    from gpuprov.inventory.firstboot.files import Wishes


@dataclass(frozen=True)
class FirstBoot:
    """The options as given on the command line."""

    wheel: str | None
    index: str | None
    lock_url: str | None
    lock_out: Path | None
    modules_url: str | None
    modules_out: Path | None
    report: str | None
    no_reboot: bool
    patience: int
    compress: bool

    @property
    def wishes(self) -> Wishes:
        """The options of the first boot's files, without kernel modules.

        Raises:
            InvalidInput: no wheel, a wheel without its hash, or only one of URL and file of lock or modules.
        """
        from gpuprov.inventory.firstboot.files import Installation, Wishes
        from gpuprov.inventory.wheel import wheel_by_url

        for what in ("lock", "modules"):
            if bool(getattr(self, f"{what}_url")) != bool(getattr(self, f"{what}_out")):
                raise InvalidInput(
                    f"only one of --{what}-url and --{what}-out",
                    expected="both: the file to write, and the URL that you upload it to",
                )
        wheel = wheel_by_url(self.wheel)
        how = Installation(wheel.place, wheel.sha256, index=self.index)
        return Wishes(how, self.lock_url, self.report, not self.no_reboot, self.patience)


def first_boot_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a verb, which is called with `first_boot`, a `FirstBoot`, in their place."""

    @click.option(
        "--wheel",
        metavar="URL#sha256=HASH",
        help="cloud-init: gpuprov's wheel; it contains the hashes of all other packages to install",
    )
    @click.option(
        "--index",
        metavar="URL",
        help="cloud-init: package index for gpuprov's requirements, in place of pip's default",
    )
    @click.option(
        "--lock-url", metavar="URL", help="cloud-init: the machine fetches its lock here, and checks its hash"
    )
    @click.option(
        "--lock-out",
        type=click.Path(path_type=Path, dir_okay=False),
        help="cloud-init: write that lock to this file, for you to upload",
    )
    @click.option(
        "--modules-url",
        metavar="URL",
        help="cloud-init: the machine fetches compiled modules here, and checks their hash",
    )
    @click.option(
        "--modules-out",
        type=click.Path(path_type=Path, dir_okay=False),
        help="cloud-init: write the store's modules for GROUP to this file, for you to upload",
    )
    @click.option("--report", metavar="URL", help="cloud-init: POST the result to this URL")
    @click.option("--no-reboot", is_flag=True, help="cloud-init: the machine must not reboot itself")
    @click.option(
        "--patience",
        type=click.IntRange(0, 86400),
        default=1800,
        show_default=True,
        help="cloud-init: seconds of a boot in which transient errors are retried",
    )
    @click.option(
        "--compress",
        is_flag=True,
        help="cloud-init: compress with gzip, if the cloud accepts binary user-data",
    )
    @functools.wraps(verb)
    def with_first_boot(**others: Any) -> Any:
        own = {name: others.pop(name) for name in FirstBoot.__dataclass_fields__}
        return verb(first_boot=FirstBoot(**own), **others)

    return with_first_boot
