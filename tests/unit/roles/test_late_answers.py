"""Programs that give no answer in time: that is not known, and is no empty answer."""

from __future__ import annotations

import gpuprov_apt
import gpuprov_node
import gpuprov_repos
import gpuprov_sshd
import pytest
from gpuprov_failures import Failed

from gpuprov.probe.node import effective
from tests.unit.roles.scripts import script


def test_a_late_answer_is_no_empty_one() -> None:
    with pytest.raises(Failed, match=r"^`sleep 5` gave no answer in 0\.1 s$"):
        gpuprov_node.output("sleep", "5", seconds=0.1)


def test_a_missing_program_and_an_empty_answer_are() -> None:
    assert gpuprov_node.output("no-such-program") == gpuprov_node.output("false") == ""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program answers in time."""
    monkeypatch.setattr(gpuprov_node, "run", lambda *_words, seconds=60: (gpuprov_node.TIMED_OUT, ""))


@pytest.mark.usefixtures("late")
def test_sockets_that_ss_does_not_list_in_time_are_not_taken_for_none() -> None:
    with pytest.raises(Failed, match="`ss -Hltne` gave no answer in 60 s"):
        gpuprov_sshd.listening()


@pytest.mark.usefixtures("late")
def test_packages_that_dpkg_does_not_list_in_time_are_not_taken_for_none() -> None:
    with pytest.raises(Failed, match="gave no answer in 60 s"):
        script("preflight").foreign_packages("nvidia-.*", [None])


@pytest.mark.parametrize(
    ("status", "said"), [(gpuprov_node.TIMED_OUT, "gave no answer in 25 s"), (1, "exited with 1")]
)
def test_a_repository_is_not_hidden_by_what_users_do_to_dnf(
    status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have dnf kept busy, or without room for its lock: a user can fill the disk of /var."""
    monkeypatch.setattr(
        gpuprov_node, "run", lambda *words, seconds=60: (0 if words[0] == "rpm" else status, "")
    )
    other = gpuprov_repos.Repository("/etc/yum.repos.d/x.repo", 1, "x", ("https://x.example",), True, "")
    monkeypatch.setattr(gpuprov_repos, "repositories", lambda: [other])
    monkeypatch.setattr(effective, "find_program", lambda name: None if name == "apt-get" else name)
    with pytest.raises(Failed, match=said):
        effective.offers({"repositories": [], "held": ["nvidia-driver"], "packages": []})


@pytest.mark.parametrize("odd", ["main", "a b", "$releasever", "x;y"])
def test_dnf_is_asked_about_repositories_that_it_uses(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out others: for an unknown one it lists nothing of the rest."""
    asked: list[str] = []
    monkeypatch.setattr(gpuprov_repos, "answer", lambda *words, **_: asked.extend(words) or "x\tlibcuda\n")
    assert gpuprov_repos._offered(["x", odd], ["libcuda"]) == {"x": {"libcuda"}}
    assert [word for word in asked if word.startswith("--repo=")] == ["--repo=x"]


def without_room(*words: str, seconds: float = 60) -> tuple[int, str]:
    """Answer as apt whose /tmp a user has filled, where it unpacks compressed indexes."""
    return (0, "ii  nvidia-driver\n") if words[0] == "dpkg-query" else (100, "")


def test_a_source_is_not_hidden_where_apt_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpuprov_node, "run", without_room)
    monkeypatch.setattr(effective, "find_program", lambda name: name)
    with pytest.raises(Failed, match=r"`apt-get indextargets .* exited with 100"):
        effective.offers({"repositories": [], "held": [], "packages": ["nvidia-driver"]})


REJECTED = "E: Conflicting values set for option Signed-By\nE: The list of sources could not be read.\n"


@pytest.mark.parametrize(
    ("status", "said", "found"), [(100, REJECTED, True), (100, "", False), (0, "", False)]
)
def test_sources_that_contradict_each_other_are_no_lack_of_room(
    status: int, said: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuprov_apt, "run", lambda *_words: (status, said))
    assert gpuprov_apt.rejects_sources() is found


def test_the_role_writes_sources_where_apt_rejects_all(monkeypatch: pytest.MonkeyPatch) -> None:
    repositories, preflight = script("repositories"), script("preflight")
    for look in (repositories, preflight):
        monkeypatch.setattr(look, "rejects_sources", lambda: True)
    monkeypatch.setattr(gpuprov_node, "run", without_room)
    look = repositories.of_apt("/etc/apt/x.sources", [], ["libcuda1"])
    assert look["archive"] == look["offers"] == []
    assert preflight.foreign_packages("nvidia-.*", [None]) == {}
    monkeypatch.setattr(repositories, "rejects_sources", lambda: False)
    with pytest.raises(Failed, match="exited with 100"):
        repositories.of_apt("/etc/apt/x.sources", [], ["libcuda1"])
    monkeypatch.setattr(repositories, "offers", lambda *_, **__: [])  # there is room again
    with pytest.raises(Failed, match="exited with 100"):
        repositories.of_apt("/etc/apt/x.sources", [], ["libcuda1"])


def test_a_driver_of_another_repository_is_not_hidden_where_apt_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpuprov_node, "run", without_room)
    with pytest.raises(Failed, match="`apt-cache policy` exited with 100"):
        script("preflight").foreign_packages("nvidia-.*", [None])
