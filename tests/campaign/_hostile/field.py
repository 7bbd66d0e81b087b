"""The folders in which hostile input is tried, and the signs that a goal was reached."""

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACTORS = (
    "node",
    "user on a node",
    "worker",
    "mirror",
    "metadata service",
    "user on the controller",
    "stranger",
)
GOALS = ("code", "file", "key", "node", "hang", "line", "exception")
"""Goals that no party may reach.

code: a program runs, or text controls a terminal, a page or a shell. file: a file outside is read or written.
key: a secret is shown, stored or stolen. node: one node's data reaches another. hang: a limit of time or
memory is exceeded. line: a line of another user's file is lost. exception: an undocumented error.
"""
THEIRS = b"a line of another user's file\n" * 3
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")


class Reached(Exception):
    """A goal that was reached, and the evidence."""

    def __init__(self, goal: str, seen: str) -> None:
        assert goal in GOALS, goal
        super().__init__(f"{goal}: {seen}")
        self.goal, self.seen = goal, seen


class Field:
    """Folders of a run: `work` belongs to gpuprov, all others are outside.

    Attributes:
        canary: folder in which each injected program creates a file, named after the try.
        outside: folder that must not be written.
        secret: text in place of every secret; it must not appear in any output.
        stack: cleanup of a way's processes and files.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.canary = base, base / "canary"
        self.outside = base / "outside"
        self.work = base / "a/b/c/d/e/f/work"
        self.secret, self.number = "pl4nted-s3cret-w0rd", 0
        for folder in (self.canary, self.outside, self.work):
            folder.mkdir(parents=True)
        base.chmod(0o755)
        self.canary.chmod(0o777)
        self.theirs = self.outside / "theirs"
        self.theirs.write_bytes(THEIRS)
        self._reported: set[str] = set()
        self.stack = ExitStack()
        self._own = [self.canary, self.work]

    @property
    def program(self) -> str:
        """Shell command that proves that a program ran."""
        return f"/usr/bin/touch {self.canary}/{self.number}"

    @property
    def written(self) -> Path:
        """File that must not be written."""
        return self.outside / f"written-{self.number}"

    def ignore(self, path: Path) -> None:
        """Exclude a way's own folder from the search for stray files."""
        self._own.append(path)

    def begin(self, number: int) -> None:
        """Start a try."""
        self.number = number

    def signs(self) -> Iterable[tuple[int, str, str]]:
        """Return new signs of a goal: number of the try, goal, evidence."""
        for name in sorted(path.name for path in self.canary.iterdir()):
            if name not in self._reported:
                self._reported.add(name)
                number = re.match(r"\d+", name)
                yield int(number[0]) if number else self.number, "code", f"a program made {name}"
        content = self.theirs.read_bytes() if self.theirs.exists() else b""
        if content != THEIRS:
            goal = "file" if content.startswith(THEIRS) else "line"
            self.theirs.unlink(missing_ok=True)
            self.theirs.write_bytes(THEIRS)
            yield self.number, goal, f"another user's file became {content[:80]!r}"
        for path in self._strays():
            yield self.number, "file", f"{path.relative_to(self.base)} was written"
            path.unlink()

    def _strays(self) -> list[Path]:
        """Return files outside `work` that did not exist at the start."""
        found = []
        for folder, folders, files in os.walk(self.base):
            here = Path(folder)
            if here in self._own:
                folders.clear()
                continue
            found += [here / name for name in files if here / name != self.theirs]
        return found

    def show(self, text: str, where: str) -> None:
        """Check text that is written to a terminal or a file.

        Raises:
            Reached: it controls a terminal, cannot be encoded, or contains the secret.
        """
        if self.secret in text:
            raise Reached(
                "key", f"the secret is in {where}: {text[max(0, text.index(self.secret) - 80) :][:160]!r}"
            )
        if found := STEERING.search(text):
            at = max(0, found.start() - 40)
            name = unicodedata.name(found[0], repr(found[0]))
            raise Reached("code", f"{name} in {where}: {text[at : found.end() + 40]!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Reached("exception", f"{where} cannot be encoded: {error}") from None

    def document(self, text: str, where: str) -> Any:
        """Read a JSON document strictly.

        Raises:
            Reached: it is not JSON.
        """

        def refuse(word: str) -> float:
            raise ValueError(f"{word} is no number")

        try:
            return json.loads(text, parse_constant=refuse)
        except ValueError as error:
            raise Reached("exception", f"{where} is no JSON: {error}: {text[:80]!r}") from None


@dataclass(frozen=True)
class Way:
    """A generator of hostile input: its actor, the goals it aims at, and its share of the tries.

    Attributes:
        make: builds the function of one try, which gets the random numbers of that try. It may have an
            attribute `settle`, which is called after each batch.
        seconds: limit of one try.
        mib: limit of the additional memory of one try.
    """

    actor: str
    name: str
    aims: tuple[str, ...]
    share: int
    make: Callable[[Field], Callable[[random.Random], None]]
    seconds: float
    mib: int

    @property
    def key(self) -> str:
        """Name on the command line: `node/drift`."""
        return f"{self.actor}/{self.name}"


WAYS: dict[str, Way] = {}


def way(
    actor: str, name: str, *aims: str, share: int, seconds: float = 20.0, mib: int = 400
) -> Callable[[Callable[[Field], Callable[[random.Random], None]]], Any]:
    """Return a decorator that registers a function that makes tries as a way.

    Args:
        actor: who attacks.
        aims: goals that it may reach; `hang` and `exception` are added.
        share: its number of tries among 20,000.
        seconds: limit of time for a try.
        mib: limit of memory.
    """
    assert actor in ACTORS, actor
    assert set(aims) <= set(GOALS), aims

    def enter(make: Any) -> Any:
        """Register a function that makes the try of this way, and return it."""
        found = Way(actor, name, (*aims, "hang", "exception"), share, make, seconds, mib)
        assert found.key not in WAYS, found.key
        WAYS[found.key] = found
        return make

    return enter
