"""Names of hosts and users, as fleet.yml and the command line state them."""

from __future__ import annotations

import pytest

from gpuprov.model.connection import Connection, parse_destination


@pytest.mark.parametrize("text", ["gpu01\n", "10.0.0.1\n", "[2001:db8::2]\n", "ops\n@gpu01", "gpu01:22\n"])
def test_a_destination_ends_without_a_newline(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no host|no valid user|more than one port|not a number"):
        parse_destination(text)


def test_a_user_ends_without_a_newline() -> None:
    with pytest.raises(ValueError, match="a user name such as ubuntu"):
        Connection(user="root\n")


@pytest.mark.parametrize("port", ["1", "65535"])
def test_a_port_may_be_the_first_or_the_last(port: str) -> None:
    assert parse_destination(f"gpu01:{port}").port == int(port)


@pytest.mark.parametrize("port", ["0", "65536", "22x", "\u0663", ""])
def test_another_port_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="is not a number from 1 to 65535"):
        parse_destination(f"gpu01:{port}")


@pytest.mark.parametrize("user", ["ALL", "OPS", "A_1"])
def test_a_user_is_no_word_of_sudoers(user: str) -> None:
    """Refuse a name that would give all users of a node root's rights: `ALL ALL=(ALL:ALL) NOPASSWD: ALL`."""
    with pytest.raises(ValueError, match=f"sudo does not read {user} as a user"):
        Connection(user=user)
    assert Connection(user=f"{user}x").user == f"{user}x"


@pytest.mark.parametrize("key", ["identity_file", "known_hosts"])
@pytest.mark.parametrize(
    "path", ['x" "/dev/watchdog', "x\\y", "%d/x", "${HOME}/x", "$x", "x\ny", "x\t", "\x7f"]
)
def test_a_file_is_one_that_ssh_reads_as_it_is(key: str, path: str) -> None:
    """Refuse a path from which ssh would make another one, or several."""
    with pytest.raises(ValueError, match="a path without"):
        Connection(**{key: path})
