"""Index with a valid signature, but of another suite or another day than requested."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from gpuprov.errors import GpuprovError, InvalidInput, Refused
from gpuprov.locking.repository.apt import open_apt
from gpuprov.locking.repository.fetch import Fetcher
from gpuprov.locking.repository.freshness import check_dates
from gpuprov.untrusted.openpgp import UNSIGNED
from gpuprov_lab.mirror import apt as mirror_apt
from gpuprov_lab.mirror.key import SigningKey
from gpuprov_lab.mirror.rpm import BUILT
from tests.unit.locking.repository.built_repositories import RpmRepository, Suite

Rebuild = Callable[..., Suite]
TODAY = datetime.now(UTC).replace(microsecond=0)
NOON = datetime(2026, 5, 14, 12, tzinfo=UTC)


def days_ago(days: float) -> str:
    """Return the date some days before today, as in a Release file."""
    return format_datetime(TODAY - timedelta(days=days), usegmt=True)


def complaint(suite: Suite | RpmRepository, /, kind: type[GpuprovError] = Refused, **changes: object) -> str:
    """Open a repository with changed arguments; return the message of the expected error."""
    with pytest.raises(kind) as caught:
        suite.open(**changes)
    return str(caught.value)


@pytest.mark.parametrize("beside", [False, True], ids=["InRelease", "Release.gpg"])
def test_another_suite_in_the_place_of_the_one_asked_for(rebuild: Rebuild, beside: bool) -> None:
    """Refuse the index of another suite.

    Debian signs all suites with the same keys: a mirror could offer an old suite with its vulnerabilities.
    """
    suite = rebuild(Suite="oldoldstable", Codename="buster")
    if beside:
        (suite.folder / "InRelease").unlink()
    said = complaint(suite)
    assert "dists/stable/ states Codename: buster, Suite: oldoldstable; expected the suite stable;" in said
    assert "sync the mirror again, or correct the URL" in said


def test_an_index_without_a_name_is_not_the_one_asked_for(rebuild: Rebuild) -> None:
    suite = rebuild(change=lambda text: text.replace(b"Suite: stable\n", b""))
    assert "states neither a Codename nor a Suite" in complaint(suite)


@pytest.mark.parametrize(
    "names",
    [{"Suite": "stable"}, {"Suite": "oldstable", "Codename": "stable"}, {"Suite": "stable", "Codename": "x"}],
)
def test_codename_or_suite_is_enough(rebuild: Rebuild, names: dict[str, str]) -> None:
    assert rebuild(**names).open().versions("tool")


@pytest.mark.parametrize(
    ("suite", "opens"), [("/", True), ("./", True), ("stable/", True), ("stale/", False)]
)
def test_a_flat_repository_has_the_name_of_its_folder_or_none(
    tmp_path: Path, key: SigningKey, fetcher: Fetcher, suite: str, opens: bool
) -> None:
    mirror_apt.build_flat(tmp_path / suite.strip("./"), [], key, {"Suite": "stable"})

    def look() -> None:
        open_apt(tmp_path.as_uri(), suite, [], "amd64", key.binary(), fetcher=fetcher)

    if opens:
        look()
    else:
        with pytest.raises(Refused, match="states Suite: stable; expected the suite stale/"):
            look()


def test_an_index_older_than_the_one_read_before_is_refused_with_both_dates(rebuild: Rebuild) -> None:
    rebuild(Date=days_ago(1)).open()
    suite = rebuild(Date=days_ago(9))
    said = complaint(suite)
    assert f"is dated {days_ago(9)}; expected {days_ago(1)} or later, the date of the index that was" in said
    assert f"repositories: {{ID: {{url: URL, frozen: {TODAY - timedelta(days=9):%Y-%m-%d}}}}}" in said
    assert complaint(suite) == said  # the refused index is not remembered
    assert rebuild(Date=days_ago(1)).open().versions("tool")
    assert rebuild(Date=days_ago(0.5)).open().versions("tool")


def test_leaving_the_date_out_is_no_way_around(rebuild: Rebuild) -> None:
    def undated(release: bytes) -> bytes:
        return b"".join(line for line in release.splitlines(keepends=True) if not line.startswith(b"Date:"))

    assert rebuild(change=undated).open().versions("tool")  # no earlier index had a date to compare with
    rebuild().open()
    assert "is without a date; expected" in complaint(rebuild(change=undated))


def test_an_unsigned_mirror_is_held_to_its_dates_as_well(rebuild: Rebuild) -> None:
    rebuild(None, Date=days_ago(1)).open(keyring=UNSIGNED)
    assert "or later" in complaint(rebuild(None, Date=days_ago(2)), keyring=UNSIGNED)


def test_each_repository_has_a_date_of_its_own(rebuild: Rebuild, rpms: RpmRepository) -> None:
    rebuild(Date=days_ago(0)).open()
    assert rpms.open().versions("tool")


def test_an_rpm_repository_that_goes_back(rpms: RpmRepository) -> None:
    rpms.open(keyring=UNSIGNED)
    repomd = rpms.repodata / "repomd.xml"
    stated = datetime.fromtimestamp(BUILT, UTC)
    repomd.write_text(repomd.read_text().replace(str(BUILT), str(BUILT - 86_400)))
    said = complaint(rpms, keyring=UNSIGNED)
    assert f"expected {format_datetime(stated, usegmt=True)} or later" in said
    assert rpms.open(keyring=UNSIGNED, frozen=stated.date() - timedelta(days=1)).versions("tool")


def test_a_frozen_mirror_is_judged_as_of_its_day(rebuild: Rebuild) -> None:
    rebuild(Date=days_ago(1)).open()
    suite = rebuild(Date=days_ago(30), Valid_Until=days_ago(23))
    day = TODAY.date() - timedelta(days=30)
    assert f"frozen: {day}" in complaint(suite)
    assert suite.open(frozen=day).versions("tool")
    assert "expired at" in complaint(suite, frozen=day + timedelta(days=9))
    assert f"is dated {days_ago(30)}, which is after {day - timedelta(days=2)}" in complaint(
        suite, frozen=day - timedelta(days=2)
    )
    older = rebuild(Date=days_ago(33))
    assert older.open(frozen=day).versions("tool")  # the newest known index is later than the freeze
    assert f"expected {days_ago(1)} or later" in complaint(older)  # its date is still remembered


def test_a_frozen_mirror_does_not_go_back_either(rebuild: Rebuild) -> None:
    day = TODAY.date() - timedelta(days=20)
    rebuild(Date=days_ago(21)).open(frozen=day)
    said = complaint(rebuild(Date=days_ago(25)), frozen=day)
    assert f"expected {days_ago(21)} or later" in said
    assert said.endswith("or correct frozen: in fleet.yml")


def test_a_day_to_come_is_no_licence(rebuild: Rebuild) -> None:
    tomorrow = TODAY.date() + timedelta(days=1)
    suite = rebuild(Date=format_datetime(TODAY + timedelta(hours=1), usegmt=True))
    assert "which is in the future; check the clock here" in complaint(suite, frozen=tomorrow)
    suite = rebuild(Date=days_ago(3), Valid_Until=days_ago(2))
    assert "expired at" in complaint(suite, frozen=date.max)


def test_of_many_at_once_the_newest_is_remembered(own_state: Path) -> None:
    def read(minute: int) -> bool:
        """Check an index of that minute; return whether it is accepted."""
        try:
            check_dates("http://mirror/", NOON + timedelta(minutes=minute), now=NOON + timedelta(days=1))
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(read, [*range(40), *range(40)]))
    assert taken[39]
    [kept] = (own_state / "gpuprov/repositories").glob("*.json")
    assert json.loads(kept.read_text()) == {"url": "http://mirror/", "date": "2026-05-14T12:39:00+00:00"}
    assert not read(38)


def test_what_was_kept_and_cannot_be_read_is_named(own_state: Path) -> None:
    check_dates("http://mirror/", NOON, now=NOON)
    [kept] = (own_state / "gpuprov/repositories").glob("*.json")
    kept.write_text("{")
    with pytest.raises(InvalidInput, match=rf"{kept} cannot be read: .*; remove it"):
        check_dates("http://mirror/", NOON, now=NOON)


def test_a_state_folder_that_cannot_be_written(own_state: Path) -> None:
    (own_state / "gpuprov").write_text("in the way")
    with pytest.raises(GpuprovError, match=r"cannot be recorded: .*; set XDG_STATE_HOME"):
        check_dates("http://mirror/", NOON, now=NOON)
