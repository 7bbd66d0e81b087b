"""Rules for the package manager: incomplete installations, automatic upgrades, sources of drivers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from gpuprov.doctor import packaging
from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.reference import catalog
from gpuprov.errors import InvalidInput
from gpuprov.untrusted import ShellLine, shell, shell_words
from gpuprov.untrusted.kept import kept

OURS = re.compile(r"nvidia|cuda|nccl|cudnn|^linux-(?:image|headers|modules)|^kernel")
PATTERNS, DRIVERS = 200, 64
"""Maximum numbers of patterns of unattended-upgrades, and of packages of the driver, that are compared."""
LENGTH = 100
"""Maximum length of a pattern."""
SIMPLE = re.compile(r"(?:\((?:\?:)?[\w.|-]*\)(?![*+?{])|(?:\\[.+-]|[\w.:$^~-])[*+?]?)+")
"""A pattern of names without a repeated group; the number of its repetitions and groups is checked
separately.
"""
CHOICE = re.compile(r"(?<![\\(])[*+?]|\(")
"""A repetition or a group of a pattern: each multiplies the number of ways to match a name, so that the time
of several grows exponentially.
"""
CHOICES = 2
"""Maximum number of repetitions and groups in a pattern, as in `linux-(image|headers).*`."""
DRIVER = re.compile(
    r"(?:lib)?nvidia-(?:driver|kernel|compute|utils|dkms|open)|cuda-drivers|libcuda1|libnvidia-compute"
)


NVIDIA = "developer.download.nvidia"
"""Text in the addresses of NVIDIA's repositories."""
NEEDED_MIB = {"/boot": 100, "/": 500, "/var": 500, "/usr": 500}
"""Free space needed, in MiB (our choice: a kernel with its initramfs has 60 to 90, a driver about 400)."""


@rule("packages.interrupted", "D22", source="project", after=("driver.build_failed", "packages.space"))
def interrupted(seen: Examination) -> Iterator[Fault]:
    """Report an interrupted run of dpkg, or incompletely installed packages of any kind. Degraded if dpkg or
    a package of the driver's stack was interrupted, else a risk.
    """
    broken = [f"{each.name} {each.state}" for each in seen.packages.broken]
    ours = [text for text in broken if OURS.search(text)]
    if seen.packages.interrupted or broken:
        yield Fault(
            "degraded" if ours or seen.packages.interrupted else "risk",
            "dpkg was interrupted"
            if seen.packages.interrupted and not broken
            else f"{len(broken)} packages are half installed: {listed(broken)}",
            (
                *(f"dpkg: {text}" for text in broken[:4]),
                *(["/var/lib/dpkg/updates: not empty"] if seen.packages.interrupted else []),
            ),
            "an installation failed or was stopped; apt installs nothing until it is finished",
            (shell("sudo dpkg --configure -a"), shell("sudo apt --fix-broken install")),
        )


@rule("packages.unattended", "D01", source="nvforum project", after=("driver.mismatch",))
def unattended(seen: Examination) -> Iterator[Fault]:
    """Report that unattended upgrades (dpkg) may replace driver packages that are neither held nor
    excluded.
    """
    if seen.packages.manager != "dpkg" or not seen.apt.unattended_enabled:
        return
    if "unattended-upgrades" in seen.packages.by_name and not seen.packages.version("unattended-upgrades"):
        return
    drivers = (name for name in seen.packages.by_name if DRIVER.match(name) and seen.packages.version(name))
    held = seen.packages.held
    free = [name for name in islice(drivers, DRIVERS) if name not in held and not _excluded(seen, name)]
    if free:
        yield Fault(
            "risk",
            f"unattended upgrades may replace the driver while it runs: {listed(free, 3)}",
            (
                'apt-config: APT::Periodic::Unattended-Upgrade "1"',
                f"dpkg: {len(free)} driver packages are neither held nor excluded",
            ),
            "after such an upgrade every CUDA program fails until the modules are reloaded",
            (shell("sudo apt-mark hold {}", shell_words(free[:6])),),
            "stack.driver: VERSION (packages are held, and named to unattended-upgrades)",
        )


def _excluded(seen: Examination, name: str) -> bool:
    """Return whether a pattern of the upgrades' blacklist matches a package; invalid ones do not count."""
    return any(pattern.match(name) for pattern in _safe(seen.apt.unattended_blacklist))


@kept(64, 16 * 1024)
def _safe(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return the first `PATTERNS` patterns whose time is bounded."""
    found = []
    for each in islice(filter(_is_bounded, patterns), PATTERNS):
        try:
            found.append(re.compile(each))
        except re.error:
            continue
    return tuple(found)


def _is_bounded(pattern: str) -> bool:
    """Return whether a pattern has at most `LENGTH` characters and `CHOICES`, and fits `SIMPLE`."""
    simple = len(pattern) <= LENGTH and SIMPLE.fullmatch(pattern)
    return bool(simple) and len(CHOICE.findall(pattern)) <= CHOICES


@rule("packages.reboots", "D01", source="project")
def reboots_by_itself(seen: Examination) -> Iterator[Fault]:
    """Report that unattended upgrades (dpkg) reboot the machine, which ends running jobs."""
    if seen.packages.manager == "dpkg" and seen.apt.unattended_enabled and seen.apt.automatic_reboot:
        yield Fault(
            "risk",
            "unattended upgrades reboot this machine by themselves",
            ('apt-config: Unattended-Upgrade::Automatic-Reboot "true"',),
            "such a reboot ends running jobs",
            (
                shell(
                    "echo 'Unattended-Upgrade::Automatic-Reboot \"false\";' | sudo tee "
                    "/etc/apt/apt.conf.d/99-no-automatic-reboot"
                ),
            ),
        )


@rule("packages.mixed", "D15", source="project", after=("driver.mismatch",))
def mixed_versions(seen: Examination) -> Iterator[Fault]:
    """Report packages of one driver in several versions."""
    versions: dict[str, list[str]] = defaultdict(list)
    wanted = re.compile(
        r"(?:nvidia-(?:driver|utils|kernel-common|dkms|open|headless|smi|kernel-dkms|open-kernel-dkms)"
        r"|libnvidia-(?:compute|gl|cfg1|decode|encode|ml1|ptxjitcompiler1)|libcuda1)"
        r"(?:-\d+)?(?:-server)?(?:-open)?"
    )
    for name in seen.packages.by_name:
        version = seen.packages.version(name)
        bare = re.match(r"(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)", version or "")
        if wanted.fullmatch(name) and bare:
            versions[bare[1]].append(name)
    if len(versions) > 1:
        yield Fault(
            "degraded",
            f"packages of the driver are of {len(versions)} versions: {listed(sorted(versions))}",
            tuple(f"{version}: {listed(names, 3)}" for version, names in sorted(versions.items())),
            "an incomplete upgrade, or two repositories that each provide a part",
            (
                packaging.install(
                    seen, *(f"{name}={max(versions)}-*" for name in versions[min(versions)][:3])
                ),
            ),
            "stack.driver: VERSION",
        )


@rule("packages.repositories", "D15", source="project")
def several_repositories(seen: Examination) -> Iterator[Fault]:
    """Report NVIDIA's repository together with another one for drivers, or NVIDIA's for another release,
    among apt's enabled sources.
    """
    uris = sorted({uri for source in seen.apt.sources if source.enabled for uri in source.uris})
    nvidia = [uri for uri in uris if NVIDIA in uri]
    others = [uri for uri in uris if re.search(r"graphics-drivers|rpmfusion-nonfree-nvidia|negativo17", uri)]
    releases = {release for uri in nvidia if (release := _release(uri))}
    own = _folder(seen) if releases else None
    foreign = releases - {own} if own else set()
    if nvidia and others:
        yield Fault(
            "risk",
            "two repositories offer drivers: NVIDIA's and " + listed(others),
            tuple(f"sources: {uri}" for uri in [*nvidia, *others][:4]),
            "an upgrade takes parts from both",
            (shell("keep one of them; a preference in /etc/apt/preferences.d decides between them"),),
            "stack.repository: nvidia",
        )
    files = sorted(
        {
            each.path
            for each in seen.apt.sources
            if each.enabled and not foreign.isdisjoint(map(_release, each.uris))
        }
    )
    if foreign:
        yield Fault(
            "risk",
            f"NVIDIA's repository is for {listed(sorted(foreign))}, and this system is {own}",
            tuple(f"sources: {uri}" for uri in nvidia[:4]),
            "packages of another release bring dependencies that do not fit",
            (
                *map(_set_aside, files[:4]),
                shell("and add the repository of {}, if you need it", own),
            ),
            "stack.repository: nvidia",
        )


def _folder(seen: Examination) -> str | None:
    """Return the folder of the machine's system in NVIDIA's repository, as `ubuntu2404`.

    For a release without one, the name that it would have; None for a system that the catalog does not know.
    """
    from gpuprov.catalog.identity import find_system
    from gpuprov.catalog.platforms import NAME

    name = seen.os.id + seen.os.version
    if not NAME.fullmatch(name):
        return None
    try:
        system = find_system(catalog(), name)
    except InvalidInput:
        return None
    return system.folder if system else name.replace(".", "")


def _release(uri: str) -> str | None:
    """Return the release in the address of one of NVIDIA's repositories, as `ubuntu2404`; None for others."""
    found = re.search(r"/repos/([a-z]{1,32}\d{1,8})(?:/|\Z)", uri) if NVIDIA in uri else None
    return found[1] if found else None


def _set_aside(path: str) -> ShellLine:
    """Return the command that disables a source of packages.

    A separate file is renamed, because apt ignores the new suffix; in another file one line is removed.
    """
    if path.startswith("/etc/apt/sources.list.d/"):
        return shell("sudo mv {} {}", path, f"{path}.disabled")
    return shell("remove its line from {}", path)


@rule("packages.space", "D22", "D112", source="choice")
def no_space_for_upgrades(seen: Examination) -> Iterator[Fault]:
    """Report less space than `NEEDED_MIB` for the next kernel or driver; a folder other than / only if it is
    a file system. Degraded for / or below 20 MiB, else a risk.
    """
    low = {place: free for place, free in seen.state.free_mib.items() if free < NEEDED_MIB.get(place, 0)}
    total = {row[0]: row[2] for row in seen.raw("host_state")["space"]}
    for place, free in low.items():
        if place in total or place == "/":
            yield Fault(
                "degraded" if place == "/" or free < 20 else "risk",
                f"{place} has {free} MiB free",
                (f"statvfs {place}: {free} MiB",),
                "the next kernel, initramfs or driver does not fit, and dpkg stops before it has finished",
                (shell("sudo apt autoremove --purge; sudo apt clean; sudo journalctl --vacuum-size=200M"),),
            )
