"""`gpuprov inventory export`: print nodes in the formats of schedulers, launchers and bills of materials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprov.cli.common import options
from gpuprov.cli.common.first_boot import FirstBoot, first_boot_options
from gpuprov.cli.common.terminal import give, show
from gpuprov.errors import Exit, GpuprovError, InvalidInput, NodeFailed, worst
from gpuprov.files.writing import replace_file

if TYPE_CHECKING:
    from gpuprov.inventory.exports import Access, Node
    from gpuprov.inventory.exports.slurm_site import Shape
    from gpuprov.inventory.firstboot.files import Modules
    from gpuprov.model.lock import Lock

FORMATS = (
    "slurm",
    "gres",
    "hostfile",
    "mpich",
    "kubernetes",
    "prometheus",
    "dstack",
    "skypilot",
    "ray",
    "cloud-init",
    "sbom",
)


@click.command()
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("nodes", nargs=-1)
@options.lock_option
@options.limit_option
@click.option("--live", is_flag=True, help="read processors, memory and the cores near GPUs from the nodes")
@click.option(
    "--name",
    default="gpuprov",
    show_default=True,
    help="name of the fleet, pool or cluster (dstack, skypilot, ray)",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="slurm, prometheus, kubernetes: write all files to this folder, in place of printing the nodes",
)
@click.option(
    "--topology",
    "shape",
    type=click.Choice(["tree", "block"]),
    default="tree",
    show_default=True,
    help="slurm --out: form of topology.conf; block needs Slurm 23.11 and NVLink domains in fleet.yml",
)
@click.option("--nvml", is_flag=True, help="slurm --out, gres: let slurmd's plugin for NVML find the GPUs")
@click.option("--dra", is_flag=True, help="kubernetes --out: GPUs by the DRA driver, not the device plugin")
@click.option(
    "--time-slicing",
    type=click.IntRange(2, 64),
    metavar="PODS",
    help="kubernetes --out: number of pods that share a GPU",
)
@click.option(
    "--discovery-labels",
    is_flag=True,
    help="kubernetes: also labels nvidia.com/gpu.*, only for a cluster without GPU feature discovery",
)
@options.forks_option
@options.password_option
@first_boot_options
def command(
    form: str,
    nodes: tuple[str, ...],
    lock_path: Path,
    limit: str | None,
    live: bool,
    name: str,
    out: Path | None,
    shape: Shape,
    nvml: bool,
    dra: bool,
    time_slicing: int | None,
    discovery_labels: bool,
    forks: int,
    ask_become_pass: bool,
    first_boot: FirstBoot,
) -> int:
    """Print the lock's NODES (by default all) for a scheduler or launcher, or user-data for a GROUP.

    slurm: node lines of slurm.conf, or with --out all files; gres: gres.conf; hostfile: Open MPI's,
    DeepSpeed's, Horovod's; mpich; kubernetes: `kubectl label` lines, or with --out a RuntimeClass and values
    of NVIDIA's charts; prometheus: targets for file_sd_configs, or with --out also alert rules, routes and
    a dashboard; dstack and skypilot: SSH pools; ray: the file of `ray up`. Slurm needs --live, for processors
    and memory. cloud-init: user-data that brings a fresh server to the lock of its GROUP
    (docs/first-boot.md). sbom: a software bill of materials in CycloneDX 1.6, with known CVEs.
    """
    from gpuprov.catalog import load
    from gpuprov.inventory import exports
    from gpuprov.inventory.exports.gather import live_nodes, locked_nodes
    from gpuprov.model.lock import read_lock
    from gpuprov.ssh.dispatch import Dispatch

    lock = read_lock(lock_path)
    if form == "cloud-init":
        return _cloud_init(lock, nodes, first_boot)
    names = options.select(lock, nodes, limit)
    if form == "sbom":
        return _sbom(lock, names)
    failed: list[GpuprovError] = []
    if live:
        found = []
        dispatch = Dispatch(forks, options.ask_password(ask_become_pass))
        for node, error in live_nodes(lock, names, load(), dispatch=dispatch):
            found.append(node)
            if error:
                options.note(f"{node.name}: exported from the lock only: {error}")
                failed.append(error)
    else:
        found = list(locked_nodes(lock, names, load()))
    if form in ("slurm", "gres"):
        failed += _shortcomings(found, live=live, nvml=nvml)
    folders = {
        "slurm": lambda: exports.slurm_files(found, shape, nvml=nvml),
        "prometheus": lambda: exports.prometheus_files(found),
        "kubernetes": lambda: exports.kubernetes_files(
            lock, names, load(), exports.Choices(dra, time_slicing)
        ),
    }
    if out and form in folders:
        _write_files(out, folders[form]())
    elif form == "kubernetes":
        show(exports.node_labels(found, of_discovery=discovery_labels))
    elif form == "gres":
        show(exports.gres_conf(found, nvml=nvml))
    else:
        show(_writers(name, lock, names)[form](found))
    return worst(Exit.OK, *(error.exit_code for error in failed))


def _shortcomings(nodes: Sequence[Node], *, live: bool, nvml: bool) -> list[NodeFailed]:
    """Print and return the reasons why lines of nodes lack their GPUs.

    Raises:
        InvalidInput: there is one and the nodes were not asked (not `live`).
    """
    from gpuprov.inventory.exports import shortcoming

    stated = {node.name: shortcoming(node, nvml=nvml) for node in nodes}
    found = {name: error for name, error in stated.items() if error}
    if found and not live:
        [(name, error), *_] = found.items()
        raise InvalidInput(f"{name}: not {error.seen}", expected=error.expected, do="export with --live")
    for name, error in found.items():
        options.note(f"{name}: {error}")
    return list(found.values())


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder, each in one step; those that begin with `#!` can be executed.

    Raises:
        InvalidInput: one cannot be written.
    """
    for path, text in files.items():
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_file(place, text.encode(), 0o755 if text.startswith("#!") else None, follow=False)
        except OSError as error:
            raise InvalidInput(f"{place}: {error.strerror}", do="name a writable folder") from None
        options.note(f"{place} written")


def _cloud_init(lock: Lock, nodes: Sequence[str], stated: FirstBoot) -> Exit:
    """Print user-data for new machines of a group; write the lock and the modules to upload, if requested.

    Args:
        nodes: exactly one group of the lock.

    Raises:
        InvalidInput: not one group, or an option is missing or does not fit.
    """
    from gpuprov.inventory.exports.cloud_init import LIMIT, user_data
    from gpuprov.inventory.firstboot.files import first_boot_files, own_lock
    from gpuprov.model.lock import write_lock
    from gpuprov.untrusted.urls import public_url

    if len(nodes) != 1:
        raise InvalidInput(f"{len(nodes)} groups", expected="one", do="name a group of the lock")
    own = own_lock(lock, nodes[0])
    wishes = replace(stated.wishes, modules=_modules(lock, nodes[0], stated))
    data = user_data(first_boot_files(own, wishes), compress=stated.compress)
    if stated.lock_out and stated.lock_url:
        write_lock(own, stated.lock_out)
        options.note(f"upload {stated.lock_out} to {public_url(stated.lock_url)}")
    if stated.modules_out and stated.modules_url:
        options.note(f"upload {stated.modules_out} to {public_url(stated.modules_url)}")
    give(data)
    options.note(f"user-data of {len(data)} bytes; all clouds accept up to {LIMIT}")
    return Exit.OK


def _sbom(lock: Lock, names: Sequence[str]) -> Exit:
    """Print the bill of materials of the nodes' groups.

    Raises:
        InvalidInput: the library of CycloneDX is not installed.
    """
    from importlib.util import find_spec

    from gpuprov.catalog import load

    if not find_spec("cyclonedx"):
        do = "pip install --only-binary=:all: 'cyclonedx-python-lib>=11,<12'"
        raise InvalidInput("a bill of materials needs cyclonedx-python-lib", do=do)
    from gpuprov.inventory.exports.sbom import sbom

    show(sbom(lock, names, load()))
    return Exit.OK


def _modules(lock: Lock, name: str, stated: FirstBoot) -> Modules | None:
    """Write the store's modules for a group to a file; return their URL and hash for the machines.

    None without `--modules-url` and `--modules-out`.

    Raises:
        InvalidInput: the group has no builder, or the store has no module for it.
    """
    from gpuprov.apply.kernel_modules.build import digest
    from gpuprov.apply.kernel_modules.signing import store_of
    from gpuprov.apply.kernel_modules.store import bundled
    from gpuprov.inventory.firstboot.files import FLEET, Modules
    from gpuprov.model.nodeset import fold
    from gpuprov.model.stack import IMAGE

    if not stated.modules_url or not stated.modules_out:
        return None
    group = lock.groups[name]
    if not group.components.driver.builders:
        raise InvalidInput(
            f"--modules-url, but every machine of {name} compiles its own modules",
            do=f"state stack: {{builder: NODE}} in groups.{name}, then run `gpuprov lock`",
        )
    builds = store_of(lock).of(group)
    if not builds:
        builders = fold(group.components.driver.builders)
        compiled = f"gpuprov apply -l {builders}, which compiles it"
        brought = "gpuprov apply --modules FILE, with a file from `gpuprov apply --image --modules-out FILE`"
        raise InvalidInput(
            f"the store has no module {group.components.driver.version} for {name}",
            expected=f"a build by {builders}",
            do=brought if IMAGE in group.components.driver.builders else compiled,
        )
    archive = bundled(builds, FLEET)
    replace_file(stated.modules_out, archive)
    for each in builds:
        options.note(f"included: {each.build}")
    return Modules(stated.modules_url, digest(archive))


def _accesses(lock: Lock, names: Sequence[str]) -> tuple[Access, dict[str, Access]]:
    """Return the SSH settings that most nodes have, and node → settings for the other nodes."""
    from gpuprov.inventory.exports import Access
    from gpuprov.ssh.transport import targets

    found = {}
    for target in targets(lock, names):
        way = target.route
        jump = way.jump.place if way.jump else None
        found[target.name] = Access(way.login, way.port, way.stated.identity_file, jump)
    [(most, _)] = Counter(found.values()).most_common(1)
    return most, {name: access for name, access in found.items() if access != most}


def _writers(name: str, lock: Lock, names: Sequence[str]) -> dict[str, Callable[[Sequence[Node]], str]]:
    """Return format → function that writes nodes in it; `name` is that of the fleet or pool."""
    from gpuprov.inventory import exports

    return {
        "slurm": exports.slurm_conf,
        "hostfile": exports.hostfile,
        "mpich": lambda nodes: exports.hostfile(nodes, "mpich"),
        "prometheus": exports.targets,
        "dstack": lambda nodes: exports.dstack(name, nodes, *_accesses(lock, names)),
        "skypilot": lambda nodes: exports.skypilot(name, nodes, *_accesses(lock, names)),
        "ray": lambda nodes: exports.ray(name, nodes, *_accesses(lock, names)),
    }
