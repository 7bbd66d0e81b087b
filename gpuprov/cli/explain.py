"""`gpuprov explain`: show why a version was chosen, which rules limit it, and what a newer one would need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprov.cli.common.options import lock_option, output_option, print_json
from gpuprov.cli.common.request_options import catalog_option, read_catalog, read_request, request_options
from gpuprov.cli.common.terminal import tell_lines
from gpuprov.errors import Exit, InvalidInput, did_you_mean

if TYPE_CHECKING:
    from gpuprov.locking.resolve import Request
    from gpuprov.model.lock import Lock, LockedGroup

SCHEMA = "gpuprov.explain_lock/1"


@click.command()
@click.argument("component")
@click.argument("groups", metavar="[GROUP]...", nargs=-1)
@lock_option
@request_options
@catalog_option
@output_option
def command(
    component: str,
    groups: tuple[str, ...],
    lock_path: Path,
    catalog_dirs: tuple[Path, ...],
    output: str,
    **stated: Any,
) -> int:
    """Explain the version of COMPONENT (driver, module, cuda, cudnn, nccl, ...), and what others would need.

    With --gpu and --os that of one machine's stack; without them those in the lock, for all of its GROUPs.
    """
    from gpuprov.locking.resolve.explain import explain

    if not any(stated.values()) and (groups or lock_path.is_file()):
        return _locked(component, groups, lock_path, catalog_dirs, output)
    if groups:
        raise InvalidInput(f"{', '.join(groups)} with options of a machine", do="leave out one of them")
    explanation = explain(component, read_request(stated), read_catalog(catalog_dirs))
    if output == "json":
        print_json(explanation.to_json())
    else:
        from gpuprov.report.resolution import describe_explanation

        tell_lines("\n".join(describe_explanation(explanation)))
    return Exit.REFUSED if explanation.answer.verdict == "refused" else Exit.OK


def _locked(
    component: str, stated: tuple[str, ...], lock_path: Path, catalog_dirs: tuple[Path, ...], output: str
) -> Exit:
    """Print the locked version of a component for each group that has it, its reason, and other versions.

    Raises:
        InvalidInput: the lock does not have a group, or no group has the component.
    """
    from gpuprov.locking.resolve.explain import COMPONENTS, FABRIC_MANAGER, IN_A_STACK, explain
    from gpuprov.model.lock import Components, read_lock
    from gpuprov.report.resolution import describe_locked

    lock, catalog = read_lock(lock_path), read_catalog(catalog_dirs)
    name = component.replace("-", "_").lower()
    key = {FABRIC_MANAGER: IN_A_STACK, "module": "driver"}.get(name, name)
    groups = _groups(lock, stated)
    found = {group: dict(each.components.each()).get(key) for group, each in groups.items()}
    results = [
        (
            group,
            locked,
            explain(name, _request(groups[group], name), catalog) if name in COMPONENTS else None,
        )
        for group, locked in found.items()
        if locked
    ]
    if not results:
        known = [*COMPONENTS, *Components.model_fields]
        if name not in known:
            raise InvalidInput(f"no component {component!r}", do=did_you_mean(name, known))
        raise InvalidInput(
            f"{lock_path} locks no {name}", do=f"state it in fleet.yml: stack: {{{name}: auto}}"
        )
    if output == "json":
        explained = [
            {
                "group": group,
                "version": locked.version,
                "reason": locked.reason,
                **(other.to_json() if other else {}),
            }
            for group, locked, other in results
        ]
        print_json({"schema": SCHEMA, "groups": explained})
        return Exit.OK
    texts = ["\n".join(describe_locked(group, name, locked, other)) for group, locked, other in results]
    tell_lines("\n\n".join(texts))
    return Exit.OK


def _groups(lock: Lock, stated: tuple[str, ...]) -> dict[str, LockedGroup]:
    """Return the stated groups of the lock, by default all.

    Raises:
        InvalidInput: the lock does not have one of them.
    """
    for name in stated:
        if name not in lock.groups:
            raise InvalidInput(
                f"the lock has no group {name!r}",
                expected="one of " + ", ".join(lock.groups),
                do=did_you_mean(name, lock.groups),
            )
    return {name: lock.groups[name] for name in stated or lock.groups}


def _request(group: LockedGroup, component: str) -> Request:
    """Return the request for a group's machine, with the versions of the lock.

    Another driver may have other libraries, so these are not stated for the driver and its modules.
    """
    from gpuprov.locking.repository.sources import ARCHIVE_SUITES
    from gpuprov.locking.resolve import Request

    components = group.components
    libraries = (
        {}
        if component in ("driver", "module")
        else {
            name: found.version for name in ("cuda", "cudnn", "nccl") if (found := getattr(components, name))
        }
    )
    return Request(
        gpus=(f"{group.hardware.gpu_count}x {group.hardware.gpu_model}",),
        os=group.os,
        arch=group.arch,
        driver=components.driver.version,
        module=components.driver.module,
        repository="distribution" if components.driver.repository in ARCHIVE_SUITES else "nvidia",
        **libraries,
    )
