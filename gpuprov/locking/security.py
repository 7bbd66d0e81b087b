"""The fleet's policy for versions that security bulletins concern: warn, refuse or ignore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuprov.catalog import Catalog
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.catalog.records import OF_A_BRANCH, GpuModel
from gpuprov.catalog.rules import containers, driver
from gpuprov.catalog.rules.security import Exposure, affected, exposure, upstream
from gpuprov.catalog.security_words import exposed_text, fix_text, line_text
from gpuprov.catalog.version import Version, version
from gpuprov.errors import Refused
from gpuprov.locking.resolve import AUTO
from gpuprov.locking.wanted import stated_texts
from gpuprov.model.lock import LockedGroup
from gpuprov.model.stack import StackPolicy

RULE = "security"
"""Name of the rule in messages, as the resolver's rules have one."""


@dataclass(frozen=True, slots=True)
class Advice:
    """An affected component of a group.

    Attributes:
        text: what is affected by which bulletin, and where it is fixed.
        do: the next command or change; empty if no version is known that helps.
    """

    exposure: Exposure
    text: str
    do: str


def check_security(
    name: str,
    group: LockedGroup,
    stated: StackPolicy,
    policy: str | None,
    catalog: Catalog,
    narrate: Callable[[str], None],
) -> None:
    """Apply the fleet's policy to the components of a locked group.

    Args:
        name: the group's name, for messages.
        stated: the software that the fleet and its profiles state.
        policy: `warn`, `refuse` or `ignore`; None stands for `warn`.
        catalog: the catalog with the newest bulletins.
        narrate: called with each warning.

    Raises:
        Refused: the policy is `refuse`, and a component is affected, or there are no bulletins to judge by.
    """
    if policy == "ignore":
        return None
    if catalog.bulletins_as_of is None:
        text = f"{name}: the catalog has no security bulletins, so no version can be judged by them"
        if policy == "refuse":
            raise Refused(f"{text} [{RULE}]", do="gpuprov catalog update, or security: warn in the fleet")
        return narrate(text)
    found = list(advices(name, group, catalog, stated))
    if policy == "refuse" and found:
        text = "; ".join(each.text for each in found)
        do = "; ".join(dict.fromkeys(each.do for each in found if each.do))
        raise Refused(f"{name}: {text} [{RULE}]", do=do or "security: warn in the fleet")
    for each in found:
        narrate(f"{name}: {each.text}" + (f"; {each.do}" if each.do else ""))
    return None


def advices(
    name: str, group: LockedGroup, catalog: Catalog, stated: StackPolicy | None = None
) -> Iterator[Advice]:
    """Yield a sentence and the next command for each affected component of a group; the command is empty if
    no version with a fix is known.

    Args:
        name: the group's name in the fleet.
        stated: the software that the fleet and its profiles state; None if it is not known.

    Raises:
        GpuprovError: the catalog does not know the group's GPU.
    """
    gpu = find_gpu(catalog, group.hardware.gpu_model)
    versions = group.components.versions()
    for each in filter(None, (exposure(catalog, component, text) for component, text in versions)):
        text, fixed = f"{exposed_text(each)}; {fix_text(each)}", each.nearest
        if fixed is None:
            fixed = _of_another_line(each, gpu, catalog)
            beyond = f"the next version with all fixes is {fixed}" if fixed else _nothing_beyond(each, gpu)
            text = f"{text}, and {beyond}"
        needs = _needs(each.component, fixed, group, catalog) if fixed else ""
        text = f"{text}, which needs {needs}" if needs else text
        # `lock` cannot change the Docker of the system, so that a command would be without effect.
        without_effect = needs and each.component == "container_toolkit"
        do = _do(name, group, each, fixed, stated) if fixed and not without_effect else ""
        yield Advice(each, text, do)


def _of_another_line(exposed: Exposure, gpu: GpuModel, catalog: Catalog) -> Version | None:
    """Return the oldest newer version outside the line that no bulletin concerns and the GPU runs with.

    For a driver it is the newest version of the nearest supported branch, or None.
    """
    if exposed.component in OF_A_BRANCH:
        newest = (
            (driver.end_of_life(branch, catalog.as_of), branch.type != "LTSB" and branch.type != "PB", branch)
            for number, branch in catalog.branches.items()
            if number > exposed.release.major and driver.gpu_driver_ok(gpu, branch.latest_known)
        )
        fixed = [
            (ended, other, branch.latest_known)
            for ended, other, branch in newest
            if not affected(catalog, exposed.component, branch.latest_known)
        ]
        return min(fixed)[2] if fixed else None
    if exposed.component == "cuda":
        later = (each.version for each in catalog.released_toolkits if each.version > exposed.release)
        fits = (
            each for each in later if driver.gpu_cuda_ok(gpu, each) and not affected(catalog, "cuda", each)
        )
        return next(fits, None)
    return None


def _nothing_beyond(exposed: Exposure, gpu: GpuModel) -> str:
    """Return that no other version is known either."""
    return f"no version outside {line_text(exposed)} that supports {gpu.id} is known to have all fixes"


def _needs(component: str, fixed: Version, group: LockedGroup, catalog: Catalog) -> str:
    """Return what a fixed version needs and the group lacks; empty if nothing is known to be missing."""
    if component == "cuda":
        floor = driver.min_driver(catalog, fixed.major)
        below = floor is not None and version(group.components.driver.version) < floor
        return f"driver {floor} or newer" if below else ""
    if component == "container_toolkit" and group.components.docker:
        docker = upstream(group.components.docker.version)
        unmet = containers.unmet_docker_needs(catalog, docker, fixed) if docker else ()
        return ", ".join(f"Docker {each.at_least} for {each.what}" for each in unmet)
    return ""


def _do(name: str, group: LockedGroup, exposed: Exposure, fixed: Version, stated: StackPolicy | None) -> str:
    """Return what to type for a fixed version: what to state, unless the fleet allows it, and a command.

    A version of another line is stated in any case, because the resolver may prefer the present line.
    """
    component = "driver" if exposed.component in OF_A_BRANCH else exposed.component
    texts = stated_texts(stated, component) if stated else ("",)
    allowed = all(f"{fixed}.".startswith(f"{text}.") for text in texts if text != AUTO)
    if allowed and exposed.nearest is not None:
        return f"gpuprov lock --upgrade {component}"
    more = ""
    if component == "driver" and group.components.driver.repository != "nvidia":
        more = ", repository: nvidia"
    return (
        f'state stack: {{{component}: "{fixed}"{more}}} in groups.{name}, '
        f"then: gpuprov lock --upgrade {component}"
    )
