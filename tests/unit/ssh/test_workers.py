"""Dask workers of a site's service: distribution of nodes, refusals, and replacement of lost workers."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.core import Status
from distributed.utils import LoopRunner

from gpuprov.errors import Exit, GpuprovError, InvalidInput, NodeFailed, Refused, Unreachable
from gpuprov.ssh.dispatch import DIRECT, Dispatch, current_attempt, with_place
from gpuprov.ssh.workers import closed, roster
from gpuprov.ssh.workers import cluster as clusters
from gpuprov.ssh.workers import crew as crews
from gpuprov.ssh.workers.crew import DaskCrew
from gpuprov.ssh.workers.roster import Roster

NODES = tuple(f"n{number}" for number in range(200))


@pytest.fixture(scope="module", autouse=True)
def loops_end() -> Iterator[None]:
    """End of Dask's event loops, which continue without a scheduler and would disturb other tests."""
    yield
    for _, runner in list(LoopRunner._all_loops.values()):
        if runner is not None:
            runner.stop()


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A private folder for Dask, which `closed` requires."""
    with dask.config.set({closed.FOLDER: str(tmp_path_factory.mktemp("dask"))}):
        yield


@pytest.fixture(scope="module")
def cluster(loops_end: None, scratch: None) -> Iterator[Any]:
    """Scheduler on loopback with two workers."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    options: Any = {"nthreads": 2, "dashboard": False}
    with LocalCluster(
        n_workers=0,
        processes=False,
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    ) as local:
        for name in ("east", "west"):
            local.worker_spec[name] = {
                "cls": local.new_spec["cls"],
                "options": {**local.new_spec["options"], **options},
            }
        local.sync(local._correct_state)
        with Client(local, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=20)
            yield local


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    """Provide a client of the cluster."""
    with Client(cluster, set_as_default=False) as own:
        yield own


def said_by(names: Mapping[str, Any]) -> dict[str, str | None]:
    """Return node → the worker of this attempt."""
    at = current_attempt()
    return dict.fromkeys(names, at and at.worker)


def spread(client: Client, work: Any, *names: str, **how: Any) -> dict[str, Any]:
    """Do work on nodes by Dask workers; return node → result."""
    hear, changes, over = how.get("hear"), how.get("changes", False), how.get("over", threading.Event())
    with DaskCrew(client, how.get("notes", []).append).ready() as crew:
        found = crew.do(
            work,
            dict.fromkeys(names),
            hear=lambda number, event: hear(event) if hear else None,
            changes=changes,
            first=int(time.time() * 1000),
            over=over,
        )
        return {name: answer for some in found for name, answer in some.items()}


def test_here_it_is_a_call() -> None:
    assert dict(DIRECT.spread(lambda names: said_by, {"n1": None}, answer=Any)) == {"n1": None}


def test_a_password_is_not_sent_to_workers(client: Client) -> None:
    """Refuse the combination where both are stated, so that no order can hold a password."""
    with pytest.raises(ValueError, match="password"):
        Dispatch(password="open sesame", crew=DaskCrew(client, print))  # noqa: S106
    assert "open sesame" not in repr(Dispatch(password="open sesame"))  # noqa: S106


def test_nodes_go_to_all_workers_in_parts(client: Client) -> None:
    found = spread(client, said_by, *NODES)
    assert len(found) == 200
    assert set(found.values()) == {"east", "west"}


def test_no_nodes_are_no_work(client: Client) -> None:
    assert spread(client, said_by) == {}


def test_a_worker_of_another_version_is_refused_by_name(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "VERSION", "gpuprov 99.0 on Python 3.11")
    with pytest.raises(
        Refused, match=r"^worker east at tcp://\S+ has gpuprov \S+ on Python .* expected gpuprov 99"
    ):
        spread(client, said_by, "n1", "n2")


def test_one_that_came_later_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "VERSION", "gpuprov 99.0 on Python 3.11")
    with pytest.raises(Refused, match=r"^worker (east|west) has gpuprov .* expected gpuprov 99"):
        spread(client, said_by, "n1", "n2")


def test_a_part_goes_to_the_worker_with_the_most_free_slots() -> None:
    east, west = roster.Worker("a", "east", 2), roster.Worker("b", "west", 1)
    crew = DaskCrew.__new__(DaskCrew)
    crew.roster = Roster.__new__(Roster)
    crew.roster.alive = {"a": east, "b": west}

    def free(*busy: roster.Worker, lost: str = "") -> str | None:
        """Return the name of the worker that gets the next part, None if none is free."""
        running = {number: crews._Part(["n1"], worker=each) for number, each in enumerate(busy)}
        job: Any = SimpleNamespace(changes=False, running=running)
        found = crew._free(job, crews._Part(["n2"], lost=[lost]))
        return found and found.name

    assert free(east) == "west"
    assert free(west) == free(east, west) == "east"
    assert free(lost="east") == "west"
    assert free(east, west, east) is None


def test_events_are_heard_before_the_result_is(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "LAST_WORDS_S", 60.0)
    begun = time.monotonic()

    def work(names: Mapping[str, Any]) -> dict[str, int]:
        """Report 50 events, then return the number of the attempt."""
        at = current_attempt()
        assert at
        for number in range(50):
            at.tell({"at": number})
        return dict.fromkeys(names, at.number)

    heard: list[dict[str, Any]] = []
    found = spread(client, work, "n1", hear=heard.append)
    assert heard == [{"at": number} for number in range(50)]
    assert found["n1"] > 1_600_000_000_000
    assert time.monotonic() - begun < crews.LAST_WORDS_S, "it waits for no event that was not sent"


def test_a_service_does_not_keep_the_events_of_a_client_that_has_left(cluster: Any) -> None:
    def work(names: Mapping[str, Any]) -> dict[str, Any]:
        """Report an event."""
        at = current_attempt()
        assert at
        at.tell({"msg": "kept"})
        return dict.fromkeys(names)

    def kept() -> bool:
        """Return whether the scheduler has the event."""
        return "'kept'" in str(cluster.scheduler.get_events())

    with dask.config.set({"distributed.scheduler.events-cleanup-delay": "1 ms"}):
        with Client(cluster, set_as_default=False) as own:
            spread(own, work, "n1")
            assert kept()
        until = time.monotonic() + 5
        while kept() and time.monotonic() < until:
            time.sleep(0.05)
    assert not kept()


def test_what_a_worker_cannot_do_has_its_name(client: Client) -> None:
    def no_key(names: Mapping[str, Any]) -> dict[str, Any]:
        answer = with_place(InvalidInput("the key /k does not exist", do="make one"))
        return dict.fromkeys(names, answer)

    def fails(names: Mapping[str, Any]) -> dict[str, Any]:
        raise GpuprovError("ansible-playbook ended with 4")

    found = spread(client, no_key, "n1")
    assert re.fullmatch("worker (east|west): the key /k does not exist; make one", str(found["n1"]))
    assert found["n1"].exit_code == Exit.FAILED
    found = spread(client, fails, "n1")
    assert isinstance(found["n1"], NodeFailed)
    assert re.fullmatch("worker (east|west): ansible-playbook ended with 4", str(found["n1"]))


def test_what_a_silent_worker_had_goes_to_another_with_a_higher_number(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the nodes of a frozen worker, which the scheduler still lists, to another worker."""
    numbers: list[tuple[str, int]] = []
    thaw = threading.Event()
    THAWS.append(thaw)
    frozen: list[str] = []
    read = Roster._read

    def without_frozen(self: Roster, info: Any) -> None:
        """Read the roster without the frozen workers."""
        read(self, info)
        for address in [at for at, worker in self.alive.items() if worker.name in frozen]:
            del self.alive[address]

    monkeypatch.setattr(Roster, "_read", without_frozen)

    def hear(event: dict[str, Any]) -> None:
        numbers.append((event["worker"], event["number"]))
        frozen[:] = frozen or [event["worker"]]

    found = spread(client, freezes_once, "n1", hear=hear)
    thaw.set()
    (first, lower), (second, higher) = numbers
    assert {first, second} == {"east", "west"}
    assert found == {"n1": second}
    assert higher > lower


THAWS: list[threading.Event] = []
BEGUN: list[str] = []


def freezes_once(names: Mapping[str, Any]) -> dict[str, str]:
    """Report the worker, and return its name for each node; the first worker waits for the test."""
    from tests.unit.ssh import test_workers as own  # this module, not a pickled copy

    at = current_attempt()
    assert at
    at.tell({"worker": at.worker, "number": at.number})
    own.BEGUN.append(at.worker)
    if len(own.BEGUN) == 1:
        own.THAWS[0].wait(20)
    return dict.fromkeys(names, at.worker)


def test_an_interrupted_client_stops_what_changes_nodes_and_waits_for_it(client: Client) -> None:
    def changes(names: Mapping[str, Any]) -> dict[str, bool]:
        """Wait up to 20 s; return node → whether it was stopped."""
        at = current_attempt()
        assert at
        at.tell({})
        return dict.fromkeys(names, at.stop.wait(20))

    def interrupted(event: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        spread(client, changes, "n1", hear=interrupted, changes=True)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(("gone_s", "client_s"), [(1.0, 30), (4.0, 1)], ids=["", "after Dask gave up"])
def test_a_scheduler_that_is_gone_is_said_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, gone_s: float, client_s: float
) -> None:
    monkeypatch.setattr(roster, "GONE_S", gone_s)
    monkeypatch.setattr(roster, "ANSWER_S", 1.0)
    local = LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )
    own = Client(local.scheduler_address, set_as_default=False, timeout=client_s)

    def works(names: Mapping[str, Any]) -> dict[str, bool]:
        """Wait up to 5 s; return node → whether it was stopped."""
        at = current_attempt()
        assert at
        at.tell({})
        return dict.fromkeys(names, at.stop.wait(5))

    def end(event: dict[str, Any]) -> None:
        local.sync(local.scheduler.close)

    begun = time.monotonic()
    said = r"^the scheduler at tcp://\S+ no longer answers; still running, .*: n1 on worker 0; "
    with pytest.raises(Unreachable, match=said):
        spread(own, works, "n1", hear=end, changes=True)
    assert time.monotonic() - begun < 20
    for each in (own, local):
        with suppress(TimeoutError):
            each.close(timeout=1)
    local.status = Status.closed  # its own shutdown would wait for the lost scheduler


def test_an_order_that_nobody_wants_any_more_is_left(client: Client) -> None:
    def changes(names: Mapping[str, Any]) -> dict[str, bool]:
        """Wait up to 20 s; return node → whether it was stopped."""
        at = current_attempt()
        assert at
        at.tell({})
        return dict.fromkeys(names, at.stop.wait(20))

    over, begun = threading.Event(), time.monotonic()
    found = spread(client, changes, "n1", hear=lambda event: over.set(), changes=True, over=over)
    assert found == {}
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("stated", "kind", "said"),
    [
        ("ctl1", InvalidInput, "--scheduler ctl1; expected tls://HOST:PORT"),
        ("tcp://127.0.0.1:8786", Refused, "is plain TCP, without authentication; expected tls://"),
        ("127.0.0.1:8786", InvalidInput, "no certificates for 127.0.0.1:8786"),
    ],
)
def test_a_scheduler_without_tls_is_refused_in_one_line(
    stated: str, kind: type[GpuprovError], said: str
) -> None:
    with pytest.raises(kind, match=re.escape(said)) as caught:
        clusters.cluster_at(stated)
    assert "\n" not in str(caught.value)


def test_what_dask_logs_of_a_broken_connection_is_not_said_twice() -> None:
    logging.getLogger("distributed.client").setLevel(logging.WARNING)
    clusters.hush()
    assert not logging.getLogger("distributed.client").isEnabledFor(logging.ERROR)
