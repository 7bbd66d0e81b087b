"""Properties of each predicate: monotonicity, justified refusals, independence of order."""

from __future__ import annotations

import itertools

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuprov.catalog import Version, load, version
from gpuprov.catalog.devices import not_listed
from gpuprov.catalog.gpu_names import find_gpu
from gpuprov.catalog.records import GpuModel
from gpuprov.catalog.rules import containers, driver, fabric, issues, libraries, module, systems
from tests import ROOT

CATALOG = load()

gpus = st.sampled_from(CATALOG.gpus)
hosts = st.lists(gpus, min_size=1, max_size=4).map(tuple)
toolkits = st.sampled_from(CATALOG.toolkits)
majors = st.sampled_from([11, 12, 13])
branches = st.sampled_from(list(CATALOG.branches.values()))
known_drivers = st.sampled_from(sorted(CATALOG.known_drivers))
any_drivers = st.builds(
    lambda branch, point, patch: version(f"{branch}.{point}.{patch:02}"),
    st.integers(300, 700),
    st.integers(0, 200),
    st.integers(0, 20),
)
drivers = known_drivers | any_drivers
cudnns = st.sampled_from([record.version for record in CATALOG.cudnn])
nccls = st.sampled_from([record.version for record in CATALOG.nccl])
dockers = st.builds(lambda a, b: version(f"{a}.{b}"), st.integers(17, 30), st.integers(0, 9))


@given(drivers, drivers, toolkits)
def test_native_is_monotone_in_the_driver(one: Version, two: Version, toolkit: object) -> None:
    older, newer = sorted([one, two])
    assert not driver.native(older, toolkit) or driver.native(newer, toolkit)  # type: ignore[arg-type]


@given(drivers, drivers, majors)
def test_minor_compatibility_is_monotone_in_the_driver(one: Version, two: Version, major: int) -> None:
    older, newer = sorted([one, two])
    assert not driver.minor_compat(CATALOG, older, major) or driver.minor_compat(CATALOG, newer, major)


@given(drivers, toolkits)
def test_native_drivers_from_the_floor_on_are_compatible_too(release: Version, toolkit: object) -> None:
    major = toolkit.version.major  # type: ignore[attr-defined]
    floor = driver.min_driver(CATALOG, major)
    if floor and release >= floor and driver.native(release, toolkit):  # type: ignore[arg-type]
        assert driver.minor_compat(CATALOG, release, major)


@given(drivers, toolkits, hosts)
def test_a_way_is_refused_only_below_the_floor(
    release: Version, toolkit: object, host: tuple[GpuModel, ...]
) -> None:
    cuda = toolkit.version  # type: ignore[attr-defined]
    if driver.way(CATALOG, release, cuda, toolkit, host) == "no":  # type: ignore[arg-type]
        floor = driver.min_driver(CATALOG, cuda.major)
        assert floor is not None
        assert release < floor
        base = driver.forward_compat_base(CATALOG, release.major, cuda)
        assert not base or any(driver.forward_compat_gpu(gpu) is False for gpu in host)


@given(drivers, toolkits, hosts)
def test_geforce_never_runs_by_forward_compatibility(
    release: Version, toolkit: object, host: tuple[GpuModel, ...]
) -> None:
    way = driver.way(CATALOG, release, toolkit.version, toolkit, host)  # type: ignore[arg-type, attr-defined]
    assert not way.startswith("forward") or all(gpu.segment != "geforce" for gpu in host)


def test_forward_compatibility_leaves_new_feature_branches_out() -> None:
    for cuda, number in itertools.product(CATALOG.forward_compat, CATALOG.branches):
        if CATALOG.branches[number].type == "NFB":
            assert not driver.forward_compat_base(CATALOG, number, cuda)


@given(gpus, drivers, drivers)
def test_a_gpu_is_supported_in_one_span_of_drivers(gpu: GpuModel, one: Version, two: Version) -> None:
    older, newer = sorted([one, two])
    if driver.gpu_driver_ok(gpu, older) and driver.gpu_driver_ok(gpu, newer) is False:
        assert gpu.max_driver_branch is not None
        assert newer.major > gpu.max_driver_branch
    if driver.gpu_driver_ok(gpu, newer) and driver.gpu_driver_ok(gpu, older) is False:
        assert gpu.compute_capability >= driver.HOPPER or gpu.min_driver is not None


def test_the_oldest_driver_of_each_profile_s_board_has_a_source_or_is_unknown() -> None:
    said = {}
    for path in sorted((ROOT / "inventory/profiles").glob("*.yml")):
        model = (yaml.safe_load(path.read_text()).get("hardware") or {}).get("gpu", {}).get("model")
        if model:
            gpu = find_gpu(CATALOG, model)
            assert gpu.source, model
            said[gpu.id] = driver.oldest_driver(gpu)
    assert len(said) >= 18
    stated = {name for name, text in said.items() if "as the vendor states" in text}
    listed = {name for name, text in said.items() if "not yet by" in text}
    assert stated == {"B200", "RTX PRO 6000 Blackwell Server"}
    assert {"L40S", "L4", "H100 SXM5 80GB", "H200 SXM", "GB200"} <= listed
    assert all("unknown" in text for name, text in said.items() if name not in stated | listed)


def test_lists_without_a_board_are_those_that_were_read() -> None:
    for gpu in CATALOG.gpus:
        first = {device: str(release) for device, release in gpu.first_listed.items()}
        found = {device: str(release) for device, release in gpu.not_listed.items()}
        assert found == not_listed(first, CATALOG.devices.releases), gpu.id


@given(gpus, drivers)
def test_a_driver_that_lists_a_gpu_is_never_too_old_by_lists(gpu: GpuModel, release: Version) -> None:
    device = driver.unlisted(gpu, release)
    if device:
        assert release.major == gpu.not_listed[device].major
        assert all(release < first for first in gpu.first_listed.values())


@given(gpus, toolkits)
def test_a_gpu_is_refused_only_outside_the_span_of_its_architecture(gpu: GpuModel, toolkit: object) -> None:
    cuda = toolkit.version  # type: ignore[attr-defined]
    if not driver.gpu_cuda_ok(gpu, cuda):
        too_old = gpu.first_cuda is not None and cuda < gpu.first_cuda
        too_new = gpu.last_cuda is not None and cuda.minor > gpu.last_cuda
        assert too_old or too_new


@given(drivers, toolkits, hosts)
def test_what_runs_on_a_host_runs_on_every_gpu_alone_in_any_order(
    release: Version, toolkit: object, host: tuple[GpuModel, ...]
) -> None:
    together = driver.runs(CATALOG, release, toolkit, host)  # type: ignore[arg-type]
    assert together == driver.runs(CATALOG, release, toolkit, host[::-1])  # type: ignore[arg-type]
    if together:
        assert all(driver.runs(CATALOG, release, toolkit, (gpu,)) for gpu in host)  # type: ignore[arg-type]


@given(hosts, st.integers(300, 700))
def test_flavours_shrink_as_gpus_are_added_and_fit_each_alone(
    host: tuple[GpuModel, ...], branch: int
) -> None:
    allowed = module.host_flavours(host, branch)
    assert allowed == module.host_flavours(host[::-1], branch)
    assert allowed <= module.host_flavours(host[:1], branch)
    assert module.default_flavour(host, branch) in (allowed or {None})
    for gpu in host:
        if gpu.compute_capability < Version("7.5"):
            assert "open" not in allowed
        if gpu.architecture.startswith("Blackwell") or gpu.superchip:
            assert "proprietary" not in allowed


@given(branches)
def test_the_numbers_say_what_the_records_of_branches_say(branch: object) -> None:
    by_record = module.branch_flavours(branch.branch, branch)  # type: ignore[attr-defined, arg-type]
    assert module.branch_flavours(branch.branch) == by_record  # type: ignore[attr-defined]


@given(gpus, st.integers(1, 16), st.integers(1, 16))
def test_more_gpus_never_need_a_fabric_manager_less(gpu: GpuModel, one: int, two: int) -> None:
    order = ("never", "possible", "likely", "required")
    fewer, more = sorted([one, two])
    assert order.index(fabric.gpu_need(gpu, fewer)) <= order.index(fabric.gpu_need(gpu, more))
    assert (fabric.gpu_need(gpu, 8) == "never") == (gpu.fabric_manager == "no")


@given(cudnns, majors)
def test_a_wheel_that_exists_is_a_build_that_exists(cudnn: Version, major: int) -> None:
    if major in CATALOG.cudnn_by_version[cudnn].wheel_cuda_majors:
        assert libraries.cudnn_build_exists(CATALOG, cudnn, major)


@given(nccls, majors)
def test_an_nccl_wheel_or_build_that_exists_is_allowed(nccl: Version, major: int) -> None:
    record = CATALOG.nccl_by_version[nccl]
    if major in record.wheel_cuda_majors or any(build.major == major for build in record.cuda_builds_seen):
        assert libraries.nccl_build_exists(CATALOG, nccl, major)


@given(cudnns, cudnns, gpus)
def test_a_gpu_that_cudnn_dropped_stays_dropped(one: Version, two: Version, gpu: GpuModel) -> None:
    older, newer = sorted([one, two])
    assert libraries.cudnn_gpu_ok(CATALOG, older, gpu) or not libraries.cudnn_gpu_ok(CATALOG, newer, gpu)
    if gpu.compute_capability >= Version("7.5"):
        assert libraries.cudnn_gpu_ok(CATALOG, newer, gpu)


@given(nccls, majors, gpus)
def test_nccl_refuses_only_gpus_below_its_code(nccl: Version, major: int, gpu: GpuModel) -> None:
    if not libraries.nccl_gpu_ok(CATALOG, nccl, major, gpu):
        assert gpu.compute_capability < Version("7.5")


@given(dockers, dockers, st.sampled_from([record.version for record in CATALOG.container_toolkits]))
def test_a_newer_docker_never_lacks_more(one: Version, two: Version, toolkit: Version) -> None:
    older, newer = sorted([one, two])
    lacking = [set(map(id, containers.unmet_docker_needs(CATALOG, each, toolkit))) for each in (older, newer)]
    assert lacking[1] <= lacking[0]


@given(st.sampled_from(list(CATALOG.systems.values())), toolkits)
def test_cuda_is_missing_only_where_a_table_says_so(system: object, toolkit: object) -> None:
    cuda = toolkit.version  # type: ignore[attr-defined]
    if systems.cuda_held(system, cuda) == "no":  # type: ignore[arg-type]
        assert system.cuda_absent_to or system.cuda_absent_from  # type: ignore[attr-defined]
    for seen in (system.cuda_first, system.cuda_last):  # type: ignore[attr-defined]
        assert seen is None or systems.cuda_held(system, seen) == "yes"  # type: ignore[arg-type]


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_kernel_after_one_that_fails_fails(one: int, two: int) -> None:
    (issue,) = (issue for issue in CATALOG.known_issues if issue.id == "550.163.01-pci-resize")
    older, newer = sorted([one, two])
    outcomes = [issues.build_outcome(issue, version(f"6.12.{patch}")) for patch in (older, newer)]
    order = ("builds", "unknown", "fails")
    assert order.index(outcomes[0]) <= order.index(outcomes[1])
    assert issues.build_outcome(issue, version("6.6.100")) == "unknown"


def test_a_kernel_that_breaks_a_driver_says_nothing_about_older_ones() -> None:
    broken = {each.id: each for each in CATALOG.known_issues}
    one = broken["580.119.02-linux-7.0"]
    assert not issues.is_before(one, version("7.0.9"))
    assert issues.is_before(one, version("6.8.0"))
    assert issues.build_outcome(one, version("6.18.32")) == "builds"
    assert issues.build_outcome(one, version("7.0.9")) == "fails"
    assert issues.build_outcome(one, version("7.0.3")) == "unknown"
    assert not issues.is_before(broken["550.163.01-pci-resize"], version("6.6.1"))


def test_known_failures_of_builds_have_a_range_and_a_source() -> None:
    for issue in CATALOG.known_issues:
        if issue.kind == "build":
            assert issue.drivers or issue.branches or issue.nvidia_fs, issue.id
            assert any(series.fails_from for series in issue.kernels), issue.id
            assert issue.source, issue.id


def test_every_end_of_life_is_a_month_and_judged_on_the_catalog_s_day() -> None:
    over = {
        number for number, branch in CATALOG.branches.items() if driver.end_of_life(branch, CATALOG.as_of)
    }
    assert {450, 470, 535, 550, 570, 610} <= over
    assert not {580, 595, 615} & over
    assert not any(driver.end_of_life(branch, "2019-01-01") for branch in CATALOG.branches.values())
    last_month = CATALOG.branches[535].eol
    assert not driver.end_of_life(CATALOG.branches[535], f"{last_month}-30")
