"""Builds the lock, group by group. Deterministic: the same fleet, catalog and indexes give the same bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprov.catalog import Catalog, load
from gpuprov.catalog.identity import find_gpu
from gpuprov.catalog.records import System
from gpuprov.errors import Refused
from gpuprov.fleet import Fleet, Group, read_fleet
from gpuprov.lock import Components, Driver, Hardware, Lock, LockedGroup, Repository, Setting
from gpuprov.locking.archives import Finder
from gpuprov.profile import ResolvedProfile, StackPolicy, load_profile, overlay
from gpuprov.repository.closure import closure
from gpuprov.resolve import Answer, Request, resolve

Narrate = Callable[[str], None]


def build_lock(path: Path, *, previous: Lock | None = None, narrate: Narrate = lambda line: None) -> Lock:
    """The lock of a fleet file.

    Args:
        previous: a lock whose versions are kept where the fleet still allows them.
        narrate: gets the resolver's warnings.

    Raises:
        InvalidInput: the fleet, a profile or a site's catalog is not valid.
        Refused: no such stack can work, or the repositories do not hold it; says which rule.
        Unreachable: a repository does not answer.
    """
    fleet = read_fleet(path)
    builder = Builder(fleet, path.parent, previous, narrate)
    groups = {name: builder.group(name, group) for name, group in fleet.groups.items()}
    return Lock(inputs=builder.digest(), groups=groups)


class Builder:
    """Holds what all groups of a fleet share."""

    def __init__(self, fleet: Fleet, folder: Path, previous: Lock | None, narrate: Narrate) -> None:
        self._fleet, self._previous, self._narrate = fleet, previous, narrate
        self._catalog: Catalog = load([folder / each for each in fleet.catalog_dirs])
        self._profile_dirs = [folder / each for each in ["profiles", *fleet.profile_dirs]]
        self._finder = Finder(fleet, self._catalog)
        self._profiles: dict[str, ResolvedProfile] = {}

    def digest(self) -> str:
        """A digest of the fleet and the profiles it uses."""
        said = [self._fleet.model_dump_json(), *(each.model_dump_json() for each in self._profiles.values())]
        return "sha256:" + hashlib.sha256("\n".join(said).encode()).hexdigest()

    def group(self, name: str, group: Group) -> LockedGroup:
        """One group's exact meaning."""
        profile = self._profiles.setdefault(group.profile, load_profile(group.profile, self._profile_dirs))
        hardware = self._hardware(profile)
        settings = _settings(profile, group)
        stack = overlay(profile.profile.stack, group.stack)
        answer = self._resolve(name, group, hardware, stack, settings)
        system = self._catalog.systems[answer.stack.os or group.os]
        driver, repositories = self._driver(name, answer, system, answer.stack.arch or group.arch)
        return LockedGroup(
            profile=group.profile,
            hosts=group.hosts,
            os=system.id,
            arch=answer.stack.arch or group.arch,
            connection=self._fleet.ssh,
            hardware=hardware,
            reboot=self._fleet.reboot,
            repositories=repositories,
            components=Components(driver=driver),
            settings=settings,
        )

    def _hardware(self, profile: ResolvedProfile) -> Hardware:
        gpu = profile.profile.hardware.gpu
        if gpu.model is None or gpu.count is None:
            raise Refused(
                f"profile {profile.name!r} does not say which GPUs a server has",
                expected="hardware.gpu.model and hardware.gpu.count",
            )
        record = find_gpu(self._catalog, gpu.model)
        ids = [f"{record.pci_vendor}:{device}".lower() for device in record.pci_device_ids]
        return Hardware(gpu_model=record.id, gpu_pci_ids=ids, gpu_count=gpu.count)

    def _resolve(
        self, name: str, group: Group, hardware: Hardware, stack: StackPolicy, settings: dict[str, Setting]
    ) -> Answer:
        kernel = settings["kernel"].value if "kernel" in settings else None
        request = Request(
            gpus=(f"{hardware.gpu_count}x {hardware.gpu_model}",),
            os=group.os,
            arch=group.arch,
            driver=self._wanted_driver(name, stack),
            module=stack.module,
            repository=stack.repository,
            prefer=stack.prefer,
            kernel=None if kernel == "running" else kernel,
        )
        answer = resolve(request, self._catalog)
        if answer.verdict == "refused":
            raise _refusal(name, answer)
        for warning in answer.warnings:
            self._narrate(f"{name}: {warning.text}")
        return answer

    def _wanted_driver(self, name: str, stack: StackPolicy) -> str | None:
        """What is stated; a version that is locked already, where it is what is stated still."""
        stated = None if stack.driver is None else str(stack.driver)
        locked = self._locked_driver(name)
        if locked is None:
            return stated
        still_meant = stated is None or f"{locked.version}.".startswith(f"{stated}.")
        return locked.version if still_meant else stated

    def _locked_driver(self, name: str) -> Driver | None:
        group = self._previous.groups.get(name) if self._previous else None
        return group.components.driver if group else None

    def _driver(
        self, name: str, answer: Answer, system: System, arch: str
    ) -> tuple[Driver, dict[str, Repository]]:
        packages = answer.packages["driver"]
        archives = self._finder.archives(packages.repository, system, arch)
        roots: dict[str, str | None] = dict.fromkeys(packages.names, packages.version)
        roots |= dict.fromkeys(packages.unversioned)
        whole = closure(archives.index, roots, [family_pattern(packages.hold)])
        driver = Driver(
            version=str(answer.stack.driver),
            repository=packages.repository,
            packages={name: whole[name] for name in roots},
            closure=whole,
            reason="; ".join(f.text for f in answer.reasons if f.rule.startswith("driver")) or "stated",
            source="; ".join(dict.fromkeys(f.source for f in answer.reasons if f.rule.startswith("driver"))),
            branch=int(answer.stack.branch or 0),
            module="open" if answer.stack.module == "open" else "proprietary",
            module_package=next((name for name in whole if name.endswith("-dkms")), packages.names[0]),
            hold_patterns=unattended_patterns(packages.hold),
        )
        locked = self._locked_driver(name)
        if locked and locked.version == driver.version:  # kept, so for the reason for which it was chosen
            driver = driver.model_copy(update={"reason": locked.reason, "source": locked.source})
        return driver, archives.repositories


def _settings(profile: ResolvedProfile, group: Group) -> dict[str, Setting]:
    """Every stated setting with who stated it."""
    stated = overlay(profile.profile.settings, group.settings)
    values: dict[str, Any] = stated.model_dump(exclude_none=True)
    return {
        name: Setting(
            value=value,
            reason=str(type(stated).model_fields[name].description),
            source="fleet.yml" if name in group.settings.model_fields_set else profile.origins[name],
        )
        for name, value in values.items()
    }


def _refusal(name: str, answer: Answer) -> Refused:
    rules = "; ".join(f"{each.text} [{each.rule}]" for each in answer.violations)
    would = "; ".join(each.text for each in answer.nearest)
    return Refused(f"{name}: no such stack can work: {rules}", do=f"what would: {would}" if would else "")


def family_pattern(hold: tuple[str, ...]) -> str:
    """One regular expression for a component's shell patterns, those with `!` left out."""
    kept = "|".join(_regex(each) for each in hold if not each.startswith("!"))
    left_out = "|".join(_regex(each[1:]) for each in hold if each.startswith("!"))
    return f"(?!(?:{left_out})$)(?:{kept})" if left_out else f"(?:{kept})"


def unattended_patterns(hold: tuple[str, ...]) -> list[str]:
    """Expressions for unattended-upgrades, which matches them at the start of a package's name."""
    return [f"{_regex(each)}$" for each in hold if not each.startswith("!")]


def _regex(shell_pattern: str) -> str:
    return re.sub(r"[.+]", r"\\\g<0>", shell_pattern).replace("*", ".*").replace("?", ".")
