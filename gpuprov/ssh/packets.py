"""Limits for what an SSH peer can send unread; Paramiko itself accepts packets of up to 4 GB."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, ClassVar

import paramiko
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_EXT_INFO,
    MSG_USERAUTH_INFO_REQUEST,
)
from paramiko.kex_gex import KexGexSHA256
from paramiko.packet import Packetizer

from gpuprov.ssh.strings import strings_of

PACKET_BYTES = 256 << 10
"""Maximum size of a packet, as in OpenSSH; RFC 4253, section 6.1, requires 35,000 bytes."""
BANNER_BYTES = 64 << 10
"""Maximum size of the lines up to the server's version, for which RFC 4253, section 4.2, has no limit."""
GROUP_BITS = 4096
"""Maximum size of a group of Diffie-Hellman, that of group16: with 8192 bits each power takes a second."""
GROUP_EXCHANGE = "diffie-hellman-group-exchange-sha256"
PROMPTS = 16
"""Maximum number of prompts in one request of a server; PAM needs one or two, RFC 4256 sets no limit."""
EXTENSIONS = 64
"""Maximum number of extensions that a server announces; OpenSSH announces five, RFC 8308 sets no limit."""
EXCHANGE = range(30, 35)
"""Numbers of the messages of the key exchange: RFC 4253, 4419 and 5656."""
EXCHANGE_BYTES = 16 << 10
"""Maximum size of a packet of the key exchange: a key of 16,384 bits, which can be in a certificate,
a signature and a value of the same size. Paramiko reads each number in the square of its length.
"""
ENDLESS = f"no SSH version in the first {BANNER_BYTES >> 10} KiB"

_Handler = Callable[[Any, paramiko.Message], None]
_HANDLERS: dict[int, _Handler] = vars(paramiko.Transport)["_channel_handler_table"]


class _Packets(Packetizer):
    """Paramiko's reader of packets, with limits."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._banner_room = BANNER_BYTES

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Read `n` bytes, a part of a packet whose length the peer has stated.

        Raises:
            SSHException: the packet is larger than `PACKET_BYTES`.
        """
        if not 0 <= n <= PACKET_BYTES:
            raise paramiko.SSHException(f"it sent a packet of {n} bytes; expected at most {PACKET_BYTES}")
        return super().read_all(n, check_rekey)

    def read_message(self) -> tuple[int, paramiko.Message]:
        """Read a packet; see Paramiko's Packetizer.

        Raises:
            SSHException: it requests more than `PROMPTS` answers, for which Paramiko allocates memory, or
                announces more than `EXTENSIONS`, which Paramiko counts to the end also without their text, or
                sends a packet of the key exchange that is refused.
        """
        kind, message = super().read_message()
        if kind in EXCHANGE:
            _check_exchange(message.asbytes())
        if kind == MSG_EXT_INFO:
            if message.get_int() > EXTENSIONS:
                raise paramiko.SSHException(f"it announced more than {EXTENSIONS} extensions")
            message.rewind()
        if kind == MSG_USERAUTH_INFO_REQUEST and _prompts(message) > PROMPTS:
            raise paramiko.SSHException(f"it requested more than {PROMPTS} answers for a login")
        return kind, message

    def _read_timeout(self, timeout: float) -> bytes:
        """Read some bytes of a line before the first packet.

        Raises:
            SSHException: these lines have more than `BANNER_BYTES`.
        """
        found: bytes = super()._read_timeout(timeout)  # type: ignore[misc]
        self._banner_room -= len(found)
        if self._banner_room < 0:
            raise paramiko.SSHException(f": {ENDLESS}")
        return found


class _SmallGroups(KexGexSHA256):
    """Paramiko's key exchange with a group that the server chooses, with a limit of its size."""

    max_bits = GROUP_BITS

    def _parse_kexdh_gex_group(self, m: paramiko.Message) -> None:
        """Read the group.

        Raises:
            SSHException: it is larger than `GROUP_BITS`, or no prime and generator. With a negative one
                Paramiko would look for a secret without an end.
        """
        prime, generator = m.get_mpint(), m.get_mpint()
        bits = prime.bit_length()
        if bits > GROUP_BITS:
            raise paramiko.SSHException(
                f"it chose a group of {bits} bits for the key exchange; expected at most {GROUP_BITS}"
            )
        if prime % 2 == 0 or not 1 < generator < prime - 1:
            raise paramiko.SSHException("it chose no prime and generator for the key exchange")
        m.rewind()
        super()._parse_kexdh_gex_group(m)  # type: ignore[misc]


def _check_exchange(packet: bytes) -> None:
    """Check the lengths in a server's packet of the key exchange.

    It consists of strings. The last packet has a host key, a public value and a signature, and the first and
    the third of these consist of strings, too.

    Raises:
        SSHException: it has more than `EXCHANGE_BYTES`, or states a length beyond its end.
    """
    if len(packet) > EXCHANGE_BYTES:
        raise paramiko.SSHException(f"its key exchange has a packet of more than {EXCHANGE_BYTES} bytes")
    try:
        parts = strings_of(packet)
        if len(parts) == 3:  # a group has two
            strings_of(parts[0])
            strings_of(parts[2])
    except ValueError:
        raise paramiko.SSHException("its key exchange states a length beyond the packet") from None


def _prompts(message: paramiko.Message) -> int:
    """Return the number of prompts of a request (RFC 4256, section 3.2).

    Other messages of authentication have the same number, but at most two strings and nothing after them.
    """
    for _name_instruction_language in range(3):
        message.get_binary()
    number = message.get_int()
    message.rewind()
    return number


def _within_window(handle: _Handler) -> _Handler:
    """Return a handler of a channel's data that raises SSHException if more unread data than the channel's
    window, and one packet, are there after it.
    """

    def take(channel: Any, message: paramiko.Message) -> None:
        handle(channel, message)
        unread = len(channel.in_buffer) + len(channel.in_stderr_buffer)
        if unread > channel.in_window_size + PACKET_BYTES:
            raise paramiko.SSHException(f"it sent {unread} bytes, more than the window of its channel")

    return take


class LimitedTransport(paramiko.Transport):
    """Paramiko's transport with limits, for `SSHClient.connect(transport_factory=…)`."""

    _channel_handler_table: ClassVar[dict[int, _Handler]] = {
        **_HANDLERS,
        MSG_CHANNEL_DATA: _within_window(_HANDLERS[MSG_CHANNEL_DATA]),
        MSG_CHANNEL_EXTENDED_DATA: _within_window(_HANDLERS[MSG_CHANNEL_EXTENDED_DATA]),
    }

    _kex_info: ClassVar = {**vars(paramiko.Transport)["_kex_info"], GROUP_EXCHANGE: _SmallGroups}

    def __init__(self, sock: Any, **how: Any) -> None:
        super().__init__(sock, packetizer_class=_Packets, **how)
