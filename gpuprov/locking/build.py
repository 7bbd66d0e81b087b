"""Construction of the lock, group by group: the same fleet, catalog and indexes give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from gpuprov.access.locked import unprotected_port, with_access
from gpuprov.catalog import Catalog, load
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.catalog.platforms import beside
from gpuprov.catalog.records import System
from gpuprov.catalog.releases import Release, contents, current, keep, own, pinned
from gpuprov.errors import Refused
from gpuprov.locking.archives import Finder
from gpuprov.locking.builder import check_builders, module_build, with_builder
from gpuprov.locking.components import Locker, family_pattern
from gpuprov.locking.confidential import check_confidential
from gpuprov.locking.containers import check_containers
from gpuprov.locking.gpu_settings import check_gpu_settings
from gpuprov.locking.gpudirect import check_compilers, with_peer_memory
from gpuprov.locking.hardware import locked_hardware
from gpuprov.locking.imex import check_imex
from gpuprov.locking.inputs import digest
from gpuprov.locking.network import with_network
from gpuprov.locking.resolve import ABSENT, AUTO, Answer, Request
from gpuprov.locking.resolve.checks.security import PREFERRED
from gpuprov.locking.secure_boot import check_signed, locked_secure_boot
from gpuprov.locking.security import check_security
from gpuprov.locking.storage import with_clients
from gpuprov.locking.wanted import Wanted, resolve_group, stated_texts, wanted
from gpuprov.model.components import COMPONENT, MOVABLE, MOVE_WITH_DRIVER
from gpuprov.model.connection import lay_over
from gpuprov.model.documents import MAX_BYTES, first_error
from gpuprov.model.fleet import Fleet, Group, read_fleet
from gpuprov.model.lock import (
    CatalogPin,
    Component,
    Components,
    Hardware,
    Lock,
    LockedGroup,
    Setting,
)
from gpuprov.model.profile import Profiles, ResolvedProfile, overlay
from gpuprov.nccl.record import NcclRecord, read_record
from gpuprov.untrusted.signature import require_gpgv
from gpuprov.untrusted.within_limits import within_limits

IN_RULES = 1_000_000
"""Maximum number of networks in the firewall rules of all groups; of IPv4, about what fits into a lock."""
Narrate = Callable[[str], None]
R = TypeVar("R")


@within_limits()
def build_lock(
    path: Path,
    *,
    previous: Lock | None = None,
    upgrade: Collection[str] = (),
    narrate: Narrate = lambda line: None,
) -> Lock:
    """Build the lock of a fleet file, and keep a copy of its catalog on this machine.

    Args:
        previous: a lock; its versions are kept if the fleet still allows them, and its catalog is used.
        upgrade: components (of `MOVABLE`) whose locked versions are not kept; with any, the newest catalog
            on this machine is used.
        narrate: called with the resolver's warnings, and with components that a security bulletin concerns.

    Raises:
        InvalidInput: the fleet, a profile or a site's catalog is not valid.
        Refused: no such stack can work, the repositories lack it, or a security bulletin concerns it and the
            fleet refuses such versions; the message names the rule. Or the catalog of the previous lock is
            missing.
        Unreachable: a repository does not answer.
        GpuprovError: a program is missing on this machine.
    """
    fleet = read_fleet(path)
    require_gpgv()
    release, pin = release_for(previous, upgrade, narrate)
    builder = Builder(fleet, path.parent, previous, upgrade, narrate, read_record(path), release)
    groups = {}
    for name, group in fleet.groups.items():
        with fleet.words.placing("groups", name):
            groups[name] = builder.group(name, group)
    check_builders(groups)
    check_imex(groups, fleet.nvlink_domains)
    if pin:
        keep(pin.version, contents(release.folder))
    return Lock(
        inputs=builder.digest(),
        catalog=pin,
        rollout=fleet.rollout,
        controllers=fleet.controllers,
        security=fleet.security,
        racks=fleet.racks,
        nvlink_domains=fleet.nvlink_domains,
        groups=groups,
    )


def release_for(
    previous: Lock | None, upgrade: Collection[str], narrate: Narrate
) -> tuple[Release, CatalogPin | None]:
    """Return the catalog for the lock, and its pin: the previous lock's catalog, or the current one without a
    lock or if components are upgraded.

    If the previous lock pins no catalog: gpuprov's own, without a pin, and a line to `narrate` if that is not
    the current one.

    Raises:
        Refused: the catalog of the previous lock is missing.
    """
    if previous is None or upgrade:
        release = current()
    elif previous.catalog is None:
        if current().folder != own().folder:
            narrate(f"the lock pins no catalog, so gpuprov's own is used; --upgrade uses {current()}")
        return own(), None
    else:
        release = pinned(previous.catalog.version, previous.catalog.sha256)
    return release, CatalogPin(version=str(release.version), sha256=release.sha256)


def in_form(make: Callable[[Builder, str, Group], R]) -> Callable[[Builder, str, Group], R]:
    """Return a method that makes a part of a group's lock, with pydantic's error for a text of the catalog or
    of an index, such as the name of a package, that has no form of the lock, as `Refused`.
    """

    @wraps(make)
    def made(builder: Builder, name: str, group: Group) -> R:
        try:
            return make(builder, name, group)
        except ValidationError as error:
            place, said = first_error(error)
            raise Refused(f"{name}: {error.title}.{place[:200]} has no form of a lock: {said}") from None

    return made


@dataclass(frozen=True)
class Settled:
    """A group before its packages are looked up.

    Attributes:
        granted: its settings, completed for SSH, the firewall and storage clients.
        locked: its components in the previous lock.
        request: makes the resolver's request from the wanted software.
        answer: the resolver's answer.
        want: the wanted software that `answer` is for.
    """

    hardware: Hardware
    settings: dict[str, Setting]
    granted: dict[str, Setting]
    system: System
    locked: Components | None
    request: Callable[[Wanted], Request]
    answer: Answer
    want: Wanted


class Builder:
    """State shared by all groups of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        previous: Lock | None,
        upgrade: Collection[str],
        narrate: Narrate,
        network: NcclRecord | None,
        release: Release,
    ) -> None:
        """Load the catalog with the fleet's own folders; no profile and no index is read yet.

        Raises:
            InvalidInput: a catalog folder, the name of a repository or the certificate for Secure Boot is not
                valid, or the folders' profiles are too large.
        """
        self._fleet, self._previous, self._upgrade, self._narrate = fleet, previous, upgrade, narrate
        self._network = network
        site_dirs = [folder / each for each in fleet.catalog_dirs]
        self._catalog: Catalog = load(site_dirs, release.folder)
        self._bulletins: Catalog = load(site_dirs)
        self._of_folders = Profiles(fleet.profile_folders(folder))
        self._finder = Finder(fleet, self._catalog)
        self._profiles: dict[str, ResolvedProfile] = {}
        self._secure_boot = locked_secure_boot(fleet.secure_boot, folder)
        # Of all groups, once: each group is compared with them.
        self._hosts = {
            host: address for group in fleet.groups.values() for host, address in group.hosts.items()
        }
        self._in_rules = self._in_lock = 0

    def digest(self) -> str:
        """Return a digest of the inputs; it includes the profiles of the groups that were settled so far."""
        return digest(self._fleet, self._profiles.values(), self._network, self._secure_boot)

    @in_form
    def settled(self, name: str, group: Group) -> Settled:
        """Resolve a group without reading an index, and narrate the resolver's warnings.

        Raises:
            InvalidInput: its profile, GPU, system or a stated component is unknown.
            Refused: no such stack can work, or its settings would lock the fleet out; the message names the
                rule. Also if the settings so far are larger than a lock, or a text has no form of a lock.
        """
        if group.profile not in self._profiles:
            self._profiles[group.profile] = self._of_folders.load(group.profile)
        profile = self._profiles[group.profile]
        stated = overlay(profile.profile.hardware, group.hardware)
        hardware = locked_hardware(self._catalog, group.profile, stated)
        settings = with_network(_settings(profile, group), name, group, self._network, self._narrate)
        check_gpu_settings(name, find_gpu(self._catalog, hardware.gpu_model), settings, self._narrate)
        stack = overlay(profile.profile.stack, group.stack)
        before = self._previous.groups.get(name) if self._previous else None
        locked = before.components if before else None

        def request(want: Wanted) -> Request:
            return _request(group, hardware, settings, want)

        want = wanted(stack, locked, self._upgrade)
        answer, want = resolve_group(name, request, want, self._catalog, self._narrate)
        preferred = [reason for reason in answer.reasons if reason.rule == PREFERRED]
        for each in (*preferred, *answer.warnings):
            self._narrate(f"{name}: {each.text}")
        system = self._catalog.systems[answer.stack.os or group.os]
        check_compilers(name, stack)
        gpu = find_gpu(self._catalog, hardware.gpu_model)
        check_confidential(name, settings, answer, gpu, hardware)
        chosen = with_peer_memory(name, settings, answer, gpu, system, self._catalog)
        granted = self._access(with_clients(chosen, system, self._catalog), system, group)
        if warning := unprotected_port(granted):
            self._narrate(f"{name}: {warning}")
        self._count(sum(len(each.model_dump_json()) for each in granted.values()))
        return Settled(hardware, settings, granted, system, locked, request, answer, want)

    def _count(self, size: int) -> None:
        """Add a number of bytes to those of all groups; Refused if they are more than a lock may have."""
        self._in_lock += size
        if self._in_lock > MAX_BYTES:
            raise Refused(
                f"all groups together have more than {MAX_BYTES} bytes",
                expected="a lock of at most that size",
                do="divide the fleet into several files",
            )

    @in_form
    def group(self, name: str, group: Group) -> LockedGroup:
        """Return the lock's record of one group, with exact versions from the repositories' indexes.

        Raises:
            InvalidInput: as `settled`, or its builder is not valid.
            Refused: as `settled`, the repositories lack a package, its modules cannot be signed, or the fleet
                refuses a version that a security bulletin concerns.
            Unreachable: a repository does not answer.
        """
        settled = self.settled(name, group)
        hardware, settings, locked = settled.hardware, settled.settings, settled.locked
        request, answer, want, system = settled.request, settled.answer, settled.want, settled.system
        arch = answer.stack.arch or group.arch
        switched = answer.stack.fabricmanager not in (None, ABSENT)
        locker = Locker(self._finder, system, arch, answer, self._staying(locked))
        build = module_build(want.policy)
        if build is None and locked and locked.driver.shared and not want.policy.module_build:
            self._narrate(
                f"{name}: each node compiles its own module, as stack.builder names no builder for the others"
            )
        components = self._components(name, locker, answer, want, request, settings, build)
        check_signed(name, self._secure_boot, components.driver)
        for each in beside(system.id, arch) if components.driver.compiled else ():
            self._narrate(
                f"{name}: the driver needs {each['package']} of {each['repository']}, which needs"
                f" {each['needs']}; enable both on the nodes: {each['enable']}"
            )
        components = with_builder(name, self._hosts, want.policy, components)
        made = LockedGroup(
            profile=group.profile,
            hosts=group.hosts,
            os=system.id,
            arch=arch,
            site=group.site,
            connection=lay_over(self._fleet.ssh, group.ssh),
            connections={host: each.ssh for host, each in group.entries.items() if each.ssh} or None,
            hardware=hardware.model_copy(update={"nvswitch": switched}),
            floors=group.floors,
            secure_boot=self._secure_boot,
            reboot=self._fleet.reboot,
            components=components.model_copy(update={"absent": self._absent(want, system)}),
            repositories=locker.repositories,
            settings=settled.granted,
        )
        self._count(len(made.model_copy(update={"settings": {}}).model_dump_json()))
        check_security(name, made, want.policy, self._fleet.security, self._bulletins, self._narrate)
        return made

    def _access(self, settings: dict[str, Setting], system: System, group: Group) -> dict[str, Setting]:
        """Return the settings completed for SSH and the firewall, for the hosts of all groups.

        Raises:
            Refused: as `with_access`, or the rules of all groups list more than `IN_RULES` networks.
        """
        own = {host: each.ssh for host, each in group.entries.items() if each.ssh}
        completed = with_access(
            settings,
            system=system.id,
            connection=lay_over(self._fleet.ssh, group.ssh),
            own=own,
            hosts=self._hosts,
        )
        if "firewall" in completed:
            networks = completed["firewall"].value["ruleset"]["networks"]
            self._in_rules += sum(map(len, networks.values()))
        if self._in_rules > IN_RULES:
            raise Refused(
                f"each group with a firewall lists all nodes: more than {IN_RULES} networks in total",
                expected="few networks, such as 10.0.0.0/16",
                do="state them as settings.firewall.fleet of each group",
            )
        return completed

    def _staying(self, locked: Components | None) -> dict[str, Component]:
        """Return the locked components that stay: neither upgraded nor moved with an upgraded one, by name;
        {} without a lock.
        """
        moving = set(self._upgrade)
        moving |= set(MOVE_WITH_DRIVER) if "driver" in moving else set()
        moving |= {"compat"} if "cuda" in moving else set()
        moving |= {"docker"} if "containerd" in moving else set()
        return {name: each for name, each in locked.each() if name not in moving} if locked else {}

    def _components(
        self,
        name: str,
        locker: Locker,
        answer: Answer,
        want: Wanted,
        request: Callable[[Wanted], Request],
        settings: dict[str, Setting],
        build: Literal["once"] | None,
    ) -> Components:
        """Return every managed component with exact versions, and the driver's companions for the hardware.

        Raises:
            Refused: no repository for the system has a component, or the container components do not fit.
        """
        found: dict[str, Component] = {"driver": locker.driver(build)}
        found |= {each: locker.component(each) for each in locker.following()}
        for each in MOVABLE[1:]:
            if not want.managed(each):
                continue
            if each not in answer.packages:
                raise Refused(
                    f"{name}: no repository for {answer.stack.os} has {each}",
                    do=f"gpuprov lock --upgrade {each}, if the lock's catalog is too old to know it",
                )
            if each == "cuda":
                found["cuda"] = locker.cuda(self._further_toolkits(name, answer, want, request))
            else:
                stated = want.text(each) if COMPONENT[each].by_repository else None
                found[each] = locker.component(each, stated)
        check_containers(name, found, want, settings, self._catalog, self._narrate)
        if "cuda" in found and "compat" in answer.packages:
            found["compat"] = locker.component("compat")
        return Components.model_validate(found)

    def _absent(self, want: Wanted, system: System) -> dict[str, str]:
        """Return the components that must be absent: name → regular expression of their packages."""
        return {
            each: family_pattern(self._catalog.own_patterns(each, system.manager))
            for each in MOVABLE[1:]
            if ABSENT in stated_texts(want.policy, each)
        }

    def _further_toolkits(
        self, name: str, answer: Answer, want: Wanted, request: Callable[[Wanted], Request]
    ) -> dict[str, Answer]:
        """Resolve each further toolkit on the same driver: version → answer; empty if only one is stated.
        Raises as `resolve_group`.
        """
        found = {}
        for text in stated_texts(want.policy, "cuda")[1:]:
            alone = want.only(driver=str(answer.stack.driver), cuda=want.toolkits.get(text, text))
            further, _ = resolve_group(name, request, alone, self._catalog, self._narrate)
            found[str(further.stack.cuda)] = further
        return found


def _request(group: Group, hardware: Hardware, settings: dict[str, Setting], want: Wanted) -> Request:
    """Return the resolver's request for a group; the kernel setting `running` counts as not stated."""
    kernel = settings["kernel"].value if "kernel" in settings else None
    return Request(
        gpus=(f"{hardware.gpu_count}x {hardware.gpu_model}",),
        os=group.os,
        arch=group.arch,
        driver=want.text("driver"),
        cuda=want.text("cuda"),
        cudnn=want.text("cudnn"),
        nccl=want.text("nccl"),
        container_toolkit=want.text("container_toolkit"),
        docker=want.text("docker"),
        podman=want.text("podman") or (AUTO if want.managed("podman") else None),
        doca_ofed=want.text("doca_ofed") or (AUTO if want.managed("doca_ofed") else None),
        gds=want.text("gds") or (AUTO if want.managed("gds") else None),
        module=want.policy.module,
        module_build="precompiled" if want.policy.module_build == "precompiled" else None,
        repository=want.policy.repository,
        prefer=want.policy.prefer,
        kernel=None if kernel == "running" else kernel,
    )


def _settings(profile: ResolvedProfile, group: Group) -> dict[str, Setting]:
    """Return every stated setting by name, with its description as reason and the file that states it as
    source.
    """
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
