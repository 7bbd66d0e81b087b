"""A driver that is older than the stated kernel: warned of, unless a report knows better."""

from __future__ import annotations

from typing import Any

import pytest

from gpuprov.catalog import load, version
from gpuprov.catalog.rules.dates import driver_day, kernel_day
from gpuprov.errors import InvalidInput
from gpuprov.locking.resolve import Answer
from tests.unit.catalog.test_load import _site
from tests.unit.locking.resolve.requests import A100, answer, rules

RULE = "driver-kernel-untested"


def untested(found: Answer) -> str | None:
    """Return the text of the warning, or None."""
    return next((each.text for each in found.warnings if each.rule == RULE), None)


def on(kernel: str, driver: str, os: str = "ubuntu22.04", **stated: Any) -> Answer:
    return answer(stated.pop("gpu", A100), os, driver=driver, kernel=kernel, **stated)


@pytest.mark.parametrize(
    ("kernel", "title"),
    [
        ("6.8.0-45-generic", "Linux 6.8"),
        ("6.8.12-4-pve", "Linux 6.8"),
        ("6.1.0-18-cloud-amd64", "Linux 6.1"),
        ("4.20.3", "Linux 4.20"),
        ("4.12.14", "Linux 4.9"),  # 4.12 has no day: not older than the series before it
        ("5.14.0-427.13.1.el9_4.x86_64", "RHEL 9.4"),
        ("5.14.0-600.el9.x86_64", "RHEL 9.6"),
        ("4.18.0-553.el8_10.x86_64", "RHEL 8.10"),
        ("5.14.0-1.el9.x86_64", "Linux 5.14"),
        ("5.14.21-150500.55.39-default", "Linux 5.14"),
        ("6.12.0-105.51.5.el9uek.x86_64", "Linux 6.12"),  # Oracle's own kernel is no build of RHEL's
        ("3.10.0-1160.el7.x86_64", None),
        ("generic", None),
    ],
)
def test_a_kernel_is_of_its_series_or_of_the_minor_release_of_its_build(
    kernel: str, title: str | None
) -> None:
    found = kernel_day(load(), kernel)
    assert (found and found.title) == title


@pytest.mark.parametrize(
    ("driver", "day"),
    [
        ("535.129.03", "2023-10-31"),
        ("580.126.16", "2026-02-23 or earlier"),  # of 580.126.20
        ("470.82.01", "2024-06-04 or earlier"),  # of the last of the branch
        ("595.123.45", None),  # newer than all that is dated
        ("304.137", None),
        ("384.98", "2017-11-03"),
        ("352.39", "2015-08-28 or earlier"),  # of 352.41
        ("384.130", None),
    ],
)
def test_a_driver_without_a_day_is_not_younger_than_later_releases(driver: str, day: str | None) -> None:
    found = driver_day(load(), version(driver))
    assert (str(found) if found else None) == day


def test_a_driver_older_than_the_kernel_is_a_warning_with_both_days_and_the_next_release() -> None:
    found = on("6.8.0-45-generic", "535.129.03")
    assert found.verdict == "warn"
    text = untested(found)
    assert text is not None
    assert "driver 535.129.03 is of 2023-10-31, Linux 6.8 of 2024-03-10" in text
    assert text.endswith("the next of its branch after that is 535.161.08")
    assert untested(on("6.8.0-45-generic", "535.161.08")) is None


def test_no_release_before_the_one_that_mends_a_branch_is_left_out_of_its_report() -> None:
    """Check all known releases of 580 before 580.159.04, which builds with Linux 7.1."""
    older = [str(each) for each in load().branches[580].known_versions if each < version("580.159.04")]
    assert "580.159.03" in older
    assert not [each for each in older if "580-linux-7.1" not in rules(on("7.1.3", each).violations)]
    assert "580-linux-7.1" not in rules(on("7.1.3", "580.159.04").violations)


def test_a_release_that_is_reported_to_fail_is_not_proposed() -> None:
    text = untested(on("7.1.3", "580.65.06"))
    assert text is None  # its own report is a violation
    assert "580-linux-7.1" in rules(on("7.1.3", "580.65.06").violations)
    later = untested(on("6.8.0", "550.54.14"))
    assert later is not None
    assert later.endswith("550.54.15")


@pytest.mark.parametrize(
    ("gpu", "advice"),
    [("Tesla K80", "is the last for the GPU: take an older kernel"), (A100, "take a newer branch")],
)
def test_the_last_release_of_a_branch_has_no_next_one(gpu: str, advice: str) -> None:
    text = untested(on("6.11.0", "470.256.02", "ubuntu24.04", gpu=gpu))
    assert text is not None
    assert advice in text


def test_builds_of_rhel_are_of_their_minor_release() -> None:
    old = untested(on("5.14.0-570.12.1.el9_6.x86_64", "550.90.07", "rhel9"))
    assert old is not None
    assert "RHEL 9.6 of 2025-05-20" in old
    assert untested(on("5.14.0-427.13.1.el9_4.x86_64", "550.90.07", "rhel9")) is None


@pytest.mark.parametrize(
    ("kernel", "driver", "module"),
    [
        ("6.7.0", "545.29.02", "open"),  # fails by 545.29.02-linux-6.7
        ("6.6.9", "535.154.05", "proprietary"),  # builds by 535.154.05-linux-6.7
        ("6.7.3", "535.129.03", "proprietary"),  # a later release of its branch fails
    ],
)
def test_a_report_of_the_pair_wins(kernel: str, driver: str, module: str) -> None:
    assert untested(on(kernel, driver, module=module)) is None


def test_what_the_distribution_builds_for_its_own_kernel_is_no_warning() -> None:
    assert untested(on("6.8.0-45-generic", "470.256.02", "ubuntu24.04", repository="distribution")) is None
    later = untested(on("6.17.0-8-generic", "470.256.02", "ubuntu24.04", repository="distribution"))
    assert later is not None
    assert "may be in its package" in later
    precompiled = on("7.0.0-14-generic", "580", "ubuntu24.04", module_build="precompiled")
    assert untested(precompiled) is None


def test_an_unstated_kernel_is_not_judged() -> None:
    assert untested(answer(A100, "ubuntu24.04", driver="535.129.03")) is None


@pytest.mark.parametrize(
    ("section", "record"),
    [
        ("release_dates", {"branch": 535, "released": {"535.1": "June 2023"}, "source": ["own"]}),
        ("release_dates", {"branch": 535, "released": {"550.1": "2023-06-14"}, "source": ["own"]}),
        ("release_dates", {"branch": 535, "released": {"R535": "2023-06-14"}, "source": ["own"]}),
        ("kernel_dates", {"first": "6.8", "title": "Linux 6.8", "released": "2024", "source": ["own"]}),
    ],
)
def test_a_site_s_days_are_checked(tmp_path: Any, section: str, record: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{section}\\["):
        load([_site(tmp_path, "drivers", **{section: [record]})])


def test_a_release_without_a_third_number_is_not_younger_than_the_next_one() -> None:
    assert str(driver_day(load(), version("570.183"))) == "2025-09-11 or earlier"  # of 570.190
    assert untested(on("6.17.1", "570.183", "ubuntu24.04"))


def test_a_known_failure_of_one_processor_is_none_of_another() -> None:
    arm = on("5.14.0", "470.74", "ubuntu20.04", arch="aarch64", gpu="T4G")
    assert "470.74-linux-5.14-aarch64" in rules(arm.violations)
    other = on("5.14.0", "470.74")
    assert "470.74-linux-5.14-aarch64" not in rules((*other.violations, *other.warnings))
