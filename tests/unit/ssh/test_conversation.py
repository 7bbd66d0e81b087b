"""Programs that receive several messages over one channel: over SSH on loopback, and as a local process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest
from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST

from gpuprov.errors import GpuprovError, NodeFailed, Unreachable
from gpuprov.ssh.conversation import Conversation, PipeConversation
from gpuprov.ssh.transport import ConnectionLimits, Session, fan_out
from tests.unit.ssh.test_transport import HUNG_UP, Door, Peers

QUICK = ConnectionLimits(connect_s=4.0, command_s=2.0, answer_bytes=100_000)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path)
    yield found
    found.close()


class Echo(Door):
    """Server that repeats every line until its input ends."""

    ended = threading.Event()

    def _serve(self, channel: paramiko.Channel) -> None:
        """Answer each input with `heard` before it, until the input ends."""
        with suppress(*HUNG_UP):
            while taken := channel.recv(4096):
                channel.sendall(b"heard " + taken)
        self.ended.set()


class Quitter(Door):
    """Server that reads once, writes to standard error and closes the channel."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Read the first input, then end with a message on standard error."""
        with suppress(*HUNG_UP):
            channel.recv(4096)
            channel.sendall_stderr(b"killed\n")
            channel.close()


class Trickle(Door):
    """Server that reads nothing, and permits one more byte of input every 50 milliseconds."""

    def _serve(self, channel: paramiko.Channel) -> None:
        """Enlarge the window of the channel until the connection ends."""
        with suppress(*HUNG_UP):
            while not channel.closed:
                message = paramiko.Message()
                message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
                message.add_int(channel.remote_chanid)
                message.add_int(1)
                channel.get_transport()._send_user_message(message)
                time.sleep(0.05)


def lines(count: int) -> Callable[[bytes], bool]:
    """Return a predicate: whether a text has this many lines."""
    return lambda said: said.count(b"\n") >= count


def over_ssh(peers: Peers, door: type[Door], work: Callable[[Conversation], object]) -> object | GpuprovError:
    """Let work talk with a program over SSH; return its result, or the error."""

    def talk(session: Session) -> object:
        """Begin a conversation on the session, do the work, and close it."""
        conversation = session.converse("any", b"first\n")
        try:
            return work(conversation)
        finally:
            conversation.close()

    [(_, answer)] = fan_out([peers.target("a", peers.ssh(door=door))], talk, limits=QUICK)
    return answer


def test_a_node_answers_each_line_over_one_channel(peers: Peers) -> None:
    def work(conversation: Conversation) -> list[bytes]:
        """Return the answers to two lines."""
        first, _ = conversation.hear(lines(1), 5)
        conversation.say(b"second\n")
        second, _ = conversation.hear(lines(1), 5)
        return [first, second]

    Echo.ended.clear()
    assert over_ssh(peers, Echo, work) == [b"heard first\n", b"heard second\n"]
    assert Echo.ended.wait(10)  # the end of the conversation closes its input


def test_a_node_that_says_nothing_has_its_time(peers: Peers) -> None:
    begun = time.monotonic()
    answer = over_ssh(peers, Echo, lambda conversation: conversation.hear(lines(9), 0.5))
    assert time.monotonic() - begun < 8
    assert isinstance(answer, NodeFailed)
    assert "no answer within 0.5 s" in str(answer)


@pytest.mark.timeout(30)
def test_a_node_that_takes_its_input_slowly_has_its_time(peers: Peers) -> None:
    begun = time.monotonic()
    answer = over_ssh(peers, Trickle, lambda conversation: conversation.say(b"x" * (3 << 20), 1.0))
    assert time.monotonic() - begun < 8
    assert isinstance(answer, Unreachable)
    assert "it refuses commands: " in str(answer)


def test_a_node_that_ends_says_why(peers: Peers) -> None:
    """Check that the errors of a program that ended are returned."""
    assert over_ssh(peers, Quitter, lambda conversation: conversation.hear(lines(9), 5)) == (b"", b"killed\n")


def here(script: str) -> PipeConversation:
    """Return a conversation with a shell script on this machine."""
    return PipeConversation(["/bin/sh", "-c", script], b"first\n", 100_000)


def test_a_process_answers_each_line() -> None:
    conversation = here("while read line; do echo heard $line; done; echo over >&2")
    try:
        assert conversation.hear(lines(1), 5)[0] == b"heard first\n"
        conversation.say(b"second\n")
        assert conversation.hear(lines(1), 5)[0] == b"heard second\n"
    finally:
        conversation.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [("sleep 60", "no answer within 0.5 s"), ("yes", "answered more than 0 MB")],
)
def test_a_process_that_gives_no_answer(script: str, said: str) -> None:
    conversation = here(f"exec {script}")
    with pytest.raises(NodeFailed, match=said):
        conversation.hear(lines(10**9), 0.5)
    conversation._process.kill()
    conversation.close()


class Dribble(Conversation):
    """A conversation with a program that prints a byte each millisecond."""

    def _piece(self, seconds: float) -> bytes:
        """Return one byte after a millisecond."""
        time.sleep(0.001)
        return b"x"


def test_a_node_that_dribbles_has_its_time_and_no_more() -> None:
    with pytest.raises(NodeFailed, match=r"no answer within 0\.1 s"):
        Dribble(3000).hear(lines(1), 0.1)


def test_a_process_that_is_gone_takes_no_orders() -> None:
    conversation = here("read line; echo no key >&2; exit 255")
    assert conversation.hear(lines(1), 5)[0] == b""
    time.sleep(0.2)
    with pytest.raises(Unreachable, match="no key"):
        conversation.say(b"x" * 65536)
    conversation.close()
