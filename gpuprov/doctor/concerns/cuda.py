"""Rules for the start of CUDA: loaded libraries, stubs, compat packages, HMM's messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprov.doctor.examination import Examination
from gpuprov.doctor.fault import Fault, listed, rule
from gpuprov.doctor.lines import without_folder, without_line, without_text
from gpuprov.untrusted import shell


@rule("cuda.libcuda_other", "D35", source="cuda-err", after=("driver.mismatch",))
def library_of_another_driver(seen: Examination) -> Iterator[Fault]:
    """Report a libcuda.so.1 of another version than the module: CUDA fails with 803 or 804. Nothing if NVML's
    library differs too, which `driver.mismatch` reports. Degraded for one of a forward-compatibility package,
    else broken.
    """
    yield from _led_elsewhere(seen)
    version, loaded = seen.taken("libcuda.so.1"), seen.loaded_driver
    if (
        not loaded
        or not version
        or version == loaded.version
        or seen.library_version not in (None, loaded.version)
    ):
        return
    path = seen.raw("libraries")["taken"]["libcuda.so.1"]
    compat = "compat" in path
    yield Fault(
        "degraded" if compat else "broken",
        f"the loader takes libcuda {version}, the driver is {loaded.version}",
        (f"ldconfig -p: libcuda.so.1 is {path}", f"/proc/driver/nvidia/version: {loaded.version}"),
        "a forward-compatibility package in the loader's own path: CUDA fails with 803 or 804 where it "
        "does not fit"
        if compat
        else "a library of another driver is found first",
        (
            shell("remove {} from /etc/ld.so.conf.d, then: sudo ldconfig", path.rpartition("/")[0]),
            shell("nvidia-smi; ldconfig -p | grep libcuda"),
        ),
    )


def _led_elsewhere(seen: Examination) -> Iterator[Fault]:
    """Report each libcuda of another version to which a login's LD_LIBRARY_PATH leads."""
    for path, place in seen.raw("libraries").get("led", ()):
        named = re.search(r"/libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)\Z", path)
        if named and seen.loaded_driver and named[1] != seen.loaded_driver.version and "/compat/" not in path:
            yield Fault(
                "broken",
                f"logins take libcuda {named[1]}, the driver is {seen.loaded_driver.version}",
                (f"{place}: LD_LIBRARY_PATH leads to {path}",),
                "a library of another driver is found first",
                (without_line(place), shell("log in again; nvidia-smi")),
            )


@rule("cuda.compat", "D36", source="cuda-err")
def compat_on_geforce(seen: Examination) -> Iterator[Fault]:
    """Report forward-compatibility libraries in the path of every login: broken with a GeForce or TITAN,
    which do not support them, else a risk.
    """
    found = {
        path: values["LD_LIBRARY_PATH"]
        for path, values in seen.environment.items()
        if re.search(r"/compat(?:[:/]|\Z)", values.get("LD_LIBRARY_PATH", ""))
    }
    paths, places = list(found), [f"{path}: {value}" for path, value in found.items()]
    consumer = [gpu.name or "" for gpu in seen.gpus if re.search("GeForce|TITAN", gpu.name or "")]
    if places:
        yield Fault(
            "broken" if consumer else "risk",
            "the forward-compatibility libraries are in the path of every login",
            tuple(places),
            "on GeForce CUDA fails with 804; elsewhere every program takes a libcuda that is not the "
            "driver's",
            (
                *(without_folder(path, "LD_LIBRARY_PATH", "compat") for path in paths[:4]),
                shell("or install a newer driver"),
            ),
            "stack.driver: VERSION",
        )


@rule("cuda.stubs", "D38", source="cuda-err")
def stubs(seen: Examination) -> Iterator[Fault]:
    """Report stub libraries, which are only for linking, in the run-time path: CUDA fails with 34.

    In the variables of programs only, they are a risk for these programs.
    """
    configured = [
        (path, line)
        for path, lines in seen.raw("libraries")["configured"].items()
        for line in lines
        if "stubs" in line.split("/")
    ]
    logins = {
        path: values["LD_LIBRARY_PATH"]
        for path, values in seen.environment.items()
        if "/stubs" in values.get("LD_LIBRARY_PATH", "")
    }
    places = [f"{path}: {line}" for path, line in configured]
    places += [f"{path}: LD_LIBRARY_PATH={value}" for path, value in logins.items()]
    for program in seen.programs if "programs" not in seen.missing else ():
        if "/stubs" in program.variables.get("LD_LIBRARY_PATH", ""):
            places.append(f"process {program.pid} ({program.name}): LD_LIBRARY_PATH has a stubs folder")
    if places:
        yield Fault(
            "broken" if configured or logins else "risk",
            "a folder of stubs is in the run-time path of libraries",
            tuple(places[:4]),
            "stubs are for linking; a program that loads one fails with CUDA error 34",
            (
                *(without_text(path, line) for path, line in configured[:4]),
                *([shell("sudo ldconfig")] if configured else []),
                *(without_folder(path, "LD_LIBRARY_PATH", "stubs") for path in list(logins)[:4]),
                *([] if configured or logins else [shell("start those programs without it")]),
            ),
            by_users=not (configured or logins),
        )


@rule("cuda.copies", "D39", source="project", after=("driver.mismatch", "cuda.libcuda_other"))
def copies(seen: Examination) -> Iterator[Fault]:
    """Report several versions of libcuda on disk, outside folders for forward compatibility."""
    found = seen.raw("libraries")["copies"]
    versions: dict[str, list[str]] = {}
    for path, real in found.items():
        result = re.search(r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)\Z", real)
        if result and "/compat" not in path:
            versions.setdefault(result[1], []).append(path)
    own = seen.taken("libcuda.so.1")
    if seen.loaded_driver:
        own = seen.loaded_driver.version
    rpm = seen.packages.manager == "rpm"
    if len(versions) > 1:
        yield Fault(
            "risk",
            f"{len(versions)} versions of libcuda are installed: {listed(sorted(versions))}",
            tuple(f"{version}: {paths[0]}" for version, paths in versions.items()),
            "leftovers of another driver; which one a program takes depends on its path",
            tuple(
                shell("rpm -qf {} || sudo rm {}   (what no package brought)", path, path)
                if rpm
                else shell("dpkg -S {} || sudo rm {}   (what no package brought)", path, path)
                for version, paths in versions.items()
                for path in paths
                if version != own
            )[:6],
        )


@rule("cuda.loader", "D56", source="lnc-231 tk-154", after=("driver.absent",))
def not_in_the_cache(seen: Examination) -> Iterator[Fault]:
    """Report that the loader does not find the libraries of a loaded driver; nothing in a container, or
    without nvidia-smi. Broken if nvidia-smi fails, else degraded.
    """
    if not seen.loaded_driver or (seen.smi.error and "not installed" in seen.smi.error):
        return
    cache = seen.raw("libraries")["cache"]
    lacking = [
        name for name in ("libcuda.so.1", "libnvidia-ml.so.1") if not any(name in line for line in cache)
    ]
    if lacking and not seen.in_container:
        yield Fault(
            "broken" if seen.smi.error else "degraded",
            f"the dynamic loader does not find {' and '.join(lacking)}",
            ("ldconfig -p: not listed",),
            "the library package is missing, or the cache was not renewed",
            (
                shell("sudo ldconfig"),
                shell("install the driver's library package (libnvidia-compute-BRANCH, libcuda1)"),
            ),
            "stack.driver: VERSION",
        )


@rule("cuda.no_smi", "D37", source="project", after=("driver.absent",))
def no_smi(seen: Examination) -> Iterator[Fault]:
    """Report a loaded driver without nvidia-smi."""
    if seen.loaded_driver and seen.smi.error and "not installed" in seen.smi.error:
        yield Fault(
            "degraded",
            f"the driver {seen.loaded_driver.version} runs, and nvidia-smi is not installed",
            (f"nvidia-smi: {seen.smi.error}",),
            "the packages of the driver's tools and libraries are missing; clocks, ECC and errors "
            "cannot be read",
            (shell("sudo apt install nvidia-utils-BRANCH   (Debian: nvidia-smi; dnf: nvidia-driver-cuda)"),),
            "stack.driver: VERSION",
        )


@rule("cuda.hmm", "D32", source="burn-133 burn-92", after=("fabric.manager",))
def heterogeneous_memory(seen: Examination) -> Iterator[Fault]:
    """Report HMM's errors in the log, unless HMM is switched off: on some kernels CUDA then fails with 802 or
    304 on a healthy fabric.
    """
    lines = seen.log_lines(r"(?i:uvm).*(?i:hmm).*(?i:fail|error)")
    if lines and seen.modprobe.options.get("nvidia_uvm", {}).get("uvm_disable_hmm") != "1":
        yield Fault(
            "risk",
            "the driver's shared memory management (HMM) complains",
            tuple(line.quoted(160) for line in lines[-2:]),
            "with some kernels CUDA fails with 802 or 304 although the fabric is set up",
            (
                shell(
                    "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee "
                    "/etc/modprobe.d/nvidia-uvm-hmm.conf"
                ),
                shell("sudo reboot"),
            ),
        )
