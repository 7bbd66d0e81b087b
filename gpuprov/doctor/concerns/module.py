"""Rules for the kernel module: built for this kernel and the next, accepted by Secure Boot, right flavour."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor import packaging
from gpuprov.doctor.builds import cause_of
from gpuprov.doctor.concerns.bus import REBUILD
from gpuprov.doctor.concerns.driver import BOUND_ELSEWHERE, expected, module_for, packaged
from gpuprov.doctor.examination import NAME, Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import without_line
from gpuprov.probe.parse.modules import DiskModule, DkmsModule
from gpuprov.untrusted import shell


@rule("driver.no_module", "D03", source="tk-trouble", after=(*BOUND_ELSEWHERE, "driver.build_failed"))
def no_module_for_this_kernel(seen: Examination) -> Iterator[Fault]:
    """Report that the driver is packaged, or has modules for other kernels, but none for the running
    kernel.
    """
    if seen.in_container or not expected(seen) or seen.loaded_driver or module_for(seen, seen.kernel):
        return
    package = packaged(seen)
    others = [kernel for kernel in seen.disk_modules if module_for(seen, kernel)]
    if not package and not others:
        return
    headers = seen.kernel in seen.kernels.headers
    get = packaging.headers(seen, seen.kernel)
    yield Fault(
        "broken",
        f"no NVIDIA module for the running kernel {seen.kernel}",
        (
            f"/lib/modules/{seen.kernel}/modules.dep: no nvidia",
            f"modules on disk for: {listed(others) or 'no kernel'}",
            f"kernel headers: {'installed' if headers else 'missing'}",
            *(
                f"dkms: {each.name} {each.version} {each.state} {each.kernel}".rstrip()
                for each in _dkms(seen)[:3]
            ),
        ),
        "the kernel was upgraded and no module was built for it"
        + ("" if headers else ", since its headers are missing"),
        (*([] if headers else [get]), shell("sudo dkms autoinstall"), shell("sudo modprobe nvidia")),
        "settings.kernel: running (gpuprov builds for the kernel that is named)",
    )


def _dkms(seen: Examination) -> list[DkmsModule]:
    """Return NVIDIA's modules in DKMS; none if DKMS could not be read."""
    return (
        [each for each in seen.dkms if each.name.startswith("nvidia")] if "dkms" not in seen.missing else []
    )


def _of_the_driver(name: str) -> bool:
    """Return whether a source of DKMS contains the driver, and not another module of NVIDIA's."""
    return not re.match(r"nvidia-(?:fs|peer|p2p|gds)", name)


@rule("driver.build_failed", "D05", source="project pop-3117 tk-glitch-133", after=BOUND_ELSEWHERE)
def build_failed(seen: Examination) -> Iterator[Fault]:
    """Report a source of the driver in DKMS without a module for this kernel on disk, with the one cause that
    the log of the build states. A risk while a driver is loaded, else broken; nothing in a container.
    """
    mine = [each for each in _dkms(seen) if _of_the_driver(each.name)]
    if seen.in_container or not mine or module_for(seen, seen.kernel) or not expected(seen):
        return
    if any(each.state == "installed" and each.kernel == seen.kernel for each in mine):
        return
    logs = {
        path: lines
        for path, lines in seen.raw("dkms_log").items()
        if not re.search(r"/nvidia-(?:fs|peer)", path)
    }
    stated = cause_of(line for lines in logs.values() for line in lines)
    headers = seen.kernel in seen.kernels.headers
    evidence = [stated[1]] if stated else [line for lines in logs.values() for line in lines[-2:]]
    yield Fault(
        "risk" if seen.loaded_driver else "broken",
        f"DKMS has {mine[0].name} {mine[0].version}, and no build of it is installed for {seen.kernel}"
        + (f": {stated[0].text}" if stated else ": its headers are missing" if not headers else ""),
        (
            *(
                f"/var/lib/dkms: {each.name} {each.version} is {each.state} {each.kernel}".rstrip()
                for each in mine[:3]
            ),
            f"/lib/modules/{seen.kernel}/build: {'there' if headers else 'missing'}",
            *(f"make.log: {line}" for line in evidence[:4]),
        ),
        stated[0].text
        if stated
        else "the headers of this kernel are missing"
        if not headers
        else "the build failed: the compiler is not the kernel's, or this driver does not know this kernel",
        (
            *([] if headers else [shell("install the headers of {}", seen.kernel)]),
            *(stated[0].mend if stated else ()),
            shell("sudo dkms install {}/{} -k {}", mine[0].name, mine[0].version, seen.kernel),
            shell("tail -50 /var/lib/dkms/{}/{}/build/make.log", mine[0].name, mine[0].version),
        ),
        "stack.driver: a version that `gpuprov resolve --kernel` accepts for this kernel",
    )


@rule("driver.next_kernel", "D04", source="project")
def no_module_for_the_next_kernel(seen: Examination) -> Iterator[Fault]:
    """Report a missing module for the kernel of the next boot while the running kernel has one."""
    following = seen.kernels.next_boot
    if not seen.loaded_driver or not following or following == seen.kernel:
        return
    if following in seen.disk_modules and module_for(seen, following):
        return
    if not module_for(seen, seen.kernel):
        return  # also no module on disk for this kernel: the loaded one is from elsewhere
    yield Fault(
        "risk",
        f"the next boot takes kernel {following}, for which there is no NVIDIA module",
        (
            f"{seen.kernels.next_boot_reason}: {following}",
            f"/lib/modules/{following}: no nvidia",
            f"running: {seen.kernel}, with a module",
        ),
        "a new kernel came with an upgrade, and its module was not built",
        (
            shell("install the headers of {}", following),
            shell("sudo dkms autoinstall -k {}", following),
        ),
        "settings.kernel and held kernels (stack.driver pins both)",
    )


@rule("driver.blacklisted", "D02", source="project")
def blacklisted(seen: Examination) -> Iterator[Fault]:
    """Report that NVIDIA's own module is blacklisted and no driver is loaded."""
    if not expected(seen) or seen.loaded_driver:
        return
    places = {**seen.modprobe.blacklisted, **seen.modprobe.disabled}
    for name in ("nvidia", "nvidia_uvm"):
        if name in places:
            yield Fault(
                "broken",
                f"the module {name} is blacklisted",
                (f"{places[name]}: keeps {name} out",),
                "a leftover of prime-select, a passthrough set-up or a failed installation",
                (without_line(places[name]), REBUILD, shell("sudo modprobe {}", name)),
            )


@rule("driver.rejected", "D06", source="realtek-3 dkms-347")
def rejected_by_secure_boot(seen: Examination) -> Iterator[Fault]:
    """Report a module that Secure Boot or lockdown rejects, by the log or by its signer, because no trusted
    key has signed it.
    """
    if seen.loaded_driver or not expected(seen):
        return
    module = module_for(seen, seen.kernel)
    keys = seen.raw("secure_boot")["keys"]
    lines = (
        seen.log_lines(r"unavailable key|unsigned module loading|Key was rejected|Required key not")
        if "kernel_log" not in seen.missing
        else []
    )
    unsigned = bool(seen.state.secure_boot and module and not module.signer)
    if not lines and not unsigned and not _stranger(seen, module, keys):
        return
    signer = (module.signer if module else None) or "no one"
    yield Fault(
        "broken",
        f"Secure Boot keeps NVIDIA's module out: it is signed by {signer}",
        (
            f"firmware: Secure Boot is {'on' if seen.state.secure_boot else 'not reported as on'}",
            *([f"{module.path}: signer {signer}"] if module else []),
            *([f"enrolled keys: {listed(list(keys)) or 'none'}"] if keys is not None else []),
            *(line.quoted(160) for line in lines[-2:]),
        ),
        "a module must be signed by a key that the firmware or the owner has enrolled",
        (
            shell("sudo mokutil --import /var/lib/dkms/mok.pub   (Ubuntu: /var/lib/shim-signed/mok/MOK.der)"),
            shell("sudo reboot, and enroll the key on the console (MOK management)"),
            shell(
                "or: the distribution's signed module (Ubuntu: linux-modules-nvidia-BRANCH-server-generic)"
            ),
        ),
        "secure_boot with stack.module_build: once (one key), or precompiled (Ubuntu's signed modules)",
        urgent=True,
    )


def _stranger(seen: Examination, module: DiskModule | None, keys: list[str] | None) -> bool:
    """Return whether Secure Boot is on and the module's signer is neither enrolled nor a distribution; False
    if a part of this is unknown.
    """
    if not seen.state.secure_boot or module is None or keys is None or not module.signer:
        return False
    signer = module.signer[:NAME]
    known = (*keys, "Canonical", "Build time autogenerated", "Debian Secure Boot", "Red Hat", "Rocky")
    return not any(key and key in signer for key in known)


@rule("driver.too_new", "D11", source="open-mod")
def legacy_gpu(seen: Examination) -> Iterator[Fault]:
    """Report a driver branch that no longer supports the GPU, by the driver's message in the log."""
    lines = seen.log_lines(
        r"\ANVRM: (?:The NVIDIA |installed in|supported through).*Legacy drivers",
        r"\ANVRM: ignoring the legacy GPU",
    )
    if lines:
        branch = re.search(r"(\d{3})\.xx Legacy", " ".join(line.text for line in lines))
        yield Fault(
            "broken",
            "the installed branch is too new for this GPU"
            + (f": it was supported up to {branch[1]}" if branch else ""),
            tuple(line.quoted(200) for line in lines[-1:]),
            "NVIDIA's newer branches leave out older architectures",
            (
                shell("install branch {}", branch[1] if branch else "named in the message"),
                shell("sudo reboot"),
            ),
            f"stack.driver: {branch[1] if branch else 'BRANCH'}",
        )
