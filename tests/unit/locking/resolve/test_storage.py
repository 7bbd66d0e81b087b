"""GPUDirect Storage: nvidia-fs with each driver, flavour, kernel and repository, refused by name."""

from __future__ import annotations

import pytest

from gpuprov.catalog import load, version
from gpuprov.catalog.rules import storage
from gpuprov.cli.common.group import run
from gpuprov.errors import InvalidInput
from tests.unit.locking.resolve.requests import A100, H100_BOARD, V100, answer, rules

SYSTEM = "ubuntu24.04"


def test_a_machine_without_it_has_no_finding_about_it() -> None:
    for gds in (None, "none"):
        found = answer(A100, SYSTEM, gds=gds)
        assert not any(each.rule.startswith("gds") for each in (*found.reasons, *found.warnings))
        assert "gds" not in found.packages
        assert found.stack.gds == gds


def test_the_repository_s_newest_comes_with_the_open_modules() -> None:
    found = answer(H100_BOARD, SYSTEM, driver="580", gds="auto")
    assert (found.verdict, found.stack.module, found.stack.gds) == ("ok", "open", "auto")
    assert found.packages["gds"].names == ("nvidia-fs", "nvidia-fs-dkms")
    assert found.packages["gds"].version is None
    assert {"gds-order", "gds-p2pdma"} <= rules(found.reasons)


def test_a_branch_whose_default_is_proprietary_gets_the_open_modules() -> None:
    plain = answer(A100, "ubuntu22.04", driver="535")
    assert plain.stack.module == "proprietary"
    assert answer(A100, "ubuntu22.04", driver="535", gds="2.25.7").stack.module == "open"
    assert answer(A100, "ubuntu22.04", driver="535", gds="2.16.1").stack.module == "proprietary"


def test_a_stated_release_is_the_packages_version() -> None:
    found = answer(A100, SYSTEM, gds="2.25.7-1")
    assert (found.stack.gds, found.packages["gds"].version) == ("2.25.7", "2.25.7")


@pytest.mark.parametrize(
    ("gpu", "stated", "rule", "mended_by"),
    [
        (A100, {"module": "proprietary", "gds": "auto"}, "gds-flavour", {"module", "gds"}),
        (A100, {"module": "proprietary", "gds": "2.17.5"}, "gds-flavour", {"module", "gds"}),
        (V100, {"gds": "auto"}, "gds-flavour", {"gds"}),
        ("L4", {"repository": "distribution", "gds": "auto"}, "gds-packages", {"repository", "gds"}),
        ("L4", {"module_build": "precompiled", "driver": "580", "gds": "auto"}, "gds-module-build", {"gds"}),
        (
            A100,
            {"gds": "2.28.2", "kernel": "6.18.8-generic"},
            "nvidia-fs-2.28.2-linux-6.18",
            {"gds", "kernel"},
        ),
        (
            A100,
            {"gds": "2.28.4", "kernel": "7.0.0-31-generic"},
            "nvidia-fs-2.28.4-linux-7.0",
            {"gds", "kernel"},
        ),
        (
            A100,
            {"gds": "2.18.3", "kernel": "6.5.0-17-generic"},
            "nvidia-fs-2.18.3-linux-6.5",
            {"gds", "kernel"},
        ),
    ],
)
def test_what_cannot_be_built_or_loaded_is_refused_by_name(
    gpu: str, stated: dict[str, str], rule: str, mended_by: set[str]
) -> None:
    refused = answer(gpu, SYSTEM, **stated)
    assert rule in rules(refused.violations)
    assert mended_by <= {each.change for each in refused.nearest}
    without = answer(gpu, SYSTEM, **{**stated, "gds": "none"})
    assert rule not in rules(without.violations)


def test_releases_before_the_symbols_suit_the_proprietary_modules() -> None:
    assert answer(V100, SYSTEM, gds="2.16.1").verdict != "refused"
    assert storage.flavour_fits(version("2.17.4"), "proprietary")
    assert not storage.flavour_fits(None, "proprietary")
    assert storage.flavour_fits(None, "open")


def test_an_older_kernel_is_no_finding_and_an_unstated_one_is_a_reason() -> None:
    older = answer(A100, SYSTEM, gds="2.28.2", kernel="6.8.0-87-generic")
    assert "nvidia-fs-2.28.2-linux-6.18" not in rules((*older.violations, *older.warnings, *older.reasons))
    assert "nvidia-fs-2.28.2-linux-6.18" in rules(answer(A100, SYSTEM, gds="2.28.2").reasons)


def test_a_gaming_board_is_a_warning() -> None:
    found = answer("RTX 4090", SYSTEM, gds="auto")
    assert (found.verdict, rules(found.warnings)) == ("warn", {"gds-gpu"})


@pytest.mark.parametrize("system", ["debian12", "ubuntu22.04", "rhel9", "amzn2023"])
def test_each_system_with_apt_or_dnf_has_its_packages(system: str) -> None:
    assert "gds" in answer(A100, system, repository="nvidia", gds="auto").packages


def test_another_text_is_no_version() -> None:
    with pytest.raises(InvalidInput, match="gds 'newest' is not a version"):
        answer(A100, SYSTEM, gds="newest")


def test_the_command_line_and_explain_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--gpu", "L4", "--os", SYSTEM, "--gds", "2.25.7"]
    assert run(["resolve", *asked]) == 0
    assert "nvidia-fs         2.25.7" in capsys.readouterr().out
    assert run(["explain", "gds", *asked]) == 0
    assert "loaded after them" in " ".join(capsys.readouterr().out.split())


def test_every_known_failure_of_it_has_releases_and_a_kernel() -> None:
    found = [issue for issue in load().known_issues if issue.nvidia_fs]
    assert len(found) >= 4
    for issue in found:
        assert all(list(storage.failed_builds([issue], each)) == [issue] for each in issue.nvidia_fs)
        assert not list(storage.failed_builds([issue], version("1.0")))
