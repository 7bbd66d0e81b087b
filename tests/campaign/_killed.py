"""Kill of a program by ptrace(2) before its Nth system call that changes a file."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

TRACEME, PEEKUSER, KILL_AT_END, SYSCALL, SETOPTIONS = 0, 3, 0x100000, 24, 0x4200
FOLLOW = 0x1 | 0x2 | 0x4 | 0x8 | KILL_AT_END  # system calls marked; fork, vfork, clone traced
MARKED = signal.SIGTRAP | 0x80
RDX, RSI, ORIG_RAX, RAX = 12 * 8, 13 * 8, 15 * 8, 10 * 8
OPEN, OPENAT = 2, 257
CREATES = os.O_CREAT | os.O_TRUNC
ENOSYS = 38
WRITES = {1, 18, 20, 40, 285, 326}
CHANGES = WRITES | {74, 75, 76, 77, 82, 83, 84, 86, 87, 88, 90, 91, 92, 93, 94, 162, 188, 189, 190}
CHANGES |= {258, 260, 263, 264, 265, 266, 268, 306, 316}
"""System calls on x86_64 that change a file.

These are write to copy_file_range, fsync, truncate, rename, mkdir, link, chmod, chown, setxattr and their *at
variants.
"""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def killed_before(number: int, work: Callable[[], None]) -> bool:
    """Run a function in a child, and kill it and its children before the numbered call.

    Returns:
        whether it was killed.
    """
    child = os.fork()
    if not child:
        try:
            _libc.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    _libc.ptrace(SETOPTIONS, child, None, FOLLOW)
    _libc.ptrace(SYSCALL, child, None, None)
    traced, count = {child}, 0
    while traced:
        pid, status = os.waitpid(-1, 0x40000000)
        if not os.WIFSTOPPED(status):
            traced.discard(pid)
            continue
        traced.add(pid)
        stopped = os.WSTOPSIG(status)
        if stopped == MARKED and _changes(pid):
            count += 1
            if count == number:
                _kill(traced)
                return True
        ours = stopped in (MARKED, signal.SIGTRAP, signal.SIGSTOP)
        _libc.ptrace(SYSCALL, pid, None, None if ours else stopped)
    return False


def _kill(traced: set[int]) -> None:
    """Kill the traced processes, and wait until all children have ended."""
    for pid in traced:
        os.kill(pid, signal.SIGKILL)
    while True:
        try:
            os.waitpid(-1, 0x40000000)
        except ChildProcessError:
            return


def _changes(pid: int) -> bool:
    """Return whether a stop is the entry of a call that changes files; at the exit RAX is its result."""
    if _register(pid, RAX) != -ENOSYS:
        return False
    call = _register(pid, ORIG_RAX)
    if call in (OPEN, OPENAT):
        return bool(_register(pid, RSI if call == OPEN else RDX) & CREATES)
    return call in CHANGES


def _register(pid: int, offset: int) -> int:
    """Return a register of a stopped process."""
    return int(_libc.ptrace(PEEKUSER, pid, offset, None))
