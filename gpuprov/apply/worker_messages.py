"""Messages of a worker during a change: Ansible's events, lines and files, each validated when read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from gpuprov.apply.context import Event, RunContext
from gpuprov.errors import NodeFailed
from gpuprov.files.writing import make_folders, replace_file
from gpuprov.untrusted import below, on_one_line, shown

FILE_CHARACTERS = 4 << 20
"""Maximum size of a worker's file that the run keeps, in characters."""
FILES = 16
"""Maximum number of files of an attempt."""
LINE = 4000
_PART = re.compile(r"again-\d{1,4}|access-\d{1,4}|access-check")
_FILE = re.compile(r"(?:site|reboot)-(?:inventory\.json|events\.jsonl|ansible\.log)")
"""Names of the files that `gpuprov.apply.playbook` writes into the folder of a run."""

_Line = Annotated[str, Field(max_length=LINE)]
_Text = Annotated[str, Field(max_length=FILE_CHARACTERS)]


class _Event(BaseModel):
    """One line of gpuprov's Ansible callback; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")

    event: _Line = ""
    play: _Line | None = None
    host: _Line | None = None
    role: _Line | None = None
    task: _Line | None = None
    status: _Line | None = None
    seconds: float | None = None
    msg: Any = None
    diff: _Text | None = None


class _WorkerMessage(BaseModel):
    """Message of a worker: exactly one of an event, a line, and a file with its text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    event: _Event | None = None
    line: _Line | None = None
    file: Annotated[str, Field(max_length=200)] | None = None
    text: _Text | None = None

    @model_validator(mode="after")
    def _is_one_message(self) -> Self:
        """Return the message; raise ValueError unless exactly one of event, line and file is present, and a
        text exactly with a file.
        """
        if sum(each is not None for each in (self.event, self.line, self.file)) != 1:
            raise ValueError("not exactly one of event, line and file")
        if (self.file is None) != (self.text is None):
            raise ValueError("a file without text, or text without a file")
        return self


def is_kept(file: str) -> bool:
    """Return whether a path in the folder of an attempt is one that gpuprov's playbooks write."""
    part, _, name = file.rpartition("/")
    return bool(_FILE.fullmatch(name) and (not part or _PART.fullmatch(part)))


def read_event(event: Event) -> Event:
    """Return an event with only the keys that gpuprov's callback writes, each of its type; `msg` becomes text
    of at most `FILE_CHARACTERS`.

    Raises:
        ValueError: a key has another type.
    """
    found = _Event.model_validate(event).model_dump(exclude_unset=True)
    if "msg" in found:
        found["msg"] = str(found["msg"])[:FILE_CHARACTERS]
    return found


def _read_failures(events: list[Event]) -> list[Event]:
    """Return events of failed tasks, with every key that is printed; raises as `read_event`."""
    whole = {"host": "", "role": "", "task": "", "status": "failed", "msg": ""}
    return [
        whole | {key: value for key, value in read_event(each).items() if value is not None}
        for each in events
    ]


Failures = Annotated[list[dict[str, Any]], AfterValidator(_read_failures)]
"""Events of failed tasks, as part of an answer."""
_WORKER_MESSAGE = TypeAdapter(_WorkerMessage)


@dataclass
class WorkerMessages:
    """Receiver of workers' messages about one change, which passes them to its run."""

    run: RunContext
    _files: Counter[int] = field(default_factory=Counter)

    def take(self, names: Collection[str], number: int, message: Any) -> None:
        """Pass an event, a line or a file to the run.

        Args:
            names: nodes that the worker may report about, by which each of its events is checked.
            number: number of the attempt, which names the folder of its files.

        Raises:
            NodeFailed: the message is invalid, is about another node, or has a file that workers do not send.
        """
        try:
            found = _WORKER_MESSAGE.validate_python(message)
            event = read_event(message["event"]) if found.event else {}
        except (ValueError, RecursionError):
            raise NodeFailed("a worker sent an event that cannot be read") from None
        if found.event is not None:
            host = event.get("host")
            if host is not None and host not in names:
                raise NodeFailed(f"a worker reported on {shown(host)}, which it was not given")
            self.run.listen({**event, "stream": number})
        elif found.line is not None:
            self.run.narrate(on_one_line(found.line))
        elif found.file is not None and found.text is not None:
            self._keep(number, found.file, found.text)

    def _keep(self, number: int, file: str, text: str) -> None:
        """Write a file into the attempt's folder; if its name has two parts, into a subfolder.

        Raises:
            NodeFailed: gpuprov's playbooks write no such file, or the attempt has sent more than `FILES`.
        """
        if not is_kept(file):
            raise NodeFailed(
                f"a worker sent the file {shown(file)}", expected="a file that gpuprov's playbooks write"
            )
        self._files[number] += 1
        if self._files[number] > FILES:
            raise NodeFailed(
                "a worker sent more files than gpuprov's playbooks write", expected=f"at most {FILES}"
            )
        part, _, name = file.rpartition("/")
        folder = below(self.run.folder, f"attempt-{int(number)}")
        place = below(below(folder, part) if part else folder, name)
        make_folders(place.parent)
        if place.is_symlink():
            place.unlink()
        replace_file(place, text.encode("utf-8", "replace"), mode=0o600)
