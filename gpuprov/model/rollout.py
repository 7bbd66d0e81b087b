"""Model of a rollout from one lock to the next: order, hooks, window, reaction to failures."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from gpuprov.model.documents import Strict

Share = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^(100|[1-9]?\d)%$")]
"""A number of nodes, or a percentage of them: `3`, `10%`."""
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


class Hook(Strict):
    """A command of the site (`run`), or one that gpuprov has (`use`), which runs once for each node.

    Its environment has GPUPROV_NODE, GPUPROV_ADDRESS, GPUPROV_RUN and GPUPROV_TIMEOUT, its own time limit in
    seconds; that of `held` also GPUPROV_REASON. It may run again for the same node if a controller died while
    it ran.
    """

    run: str | None = None
    use: str | None = None
    on: Literal["controller", "node"] = "controller"
    timeout_s: int = Field(default=600, ge=1, le=604_800)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, stated: object) -> object:
        """Convert a text to a hook that runs this command."""
        return {"run": stated} if isinstance(stated, str) else stated

    @model_validator(mode="after")
    def _one_of_both(self) -> Hook:
        """Return the hook; raise ValueError unless it has either `run` or `use`."""
        if (self.run is None) == (self.use is None):
            raise ValueError("either `run: COMMAND` or `use: NAME`")
        return self


class Hooks(Strict):
    """Commands around the change of a node: before it, for a snapshot, and for its return to service.

    Attributes:
        held: for a node that failed and stays out of service.
    """

    drain: Hook | None = None
    snapshot: Hook | None = None
    resume: Hook | None = None
    held: Hook | None = None

    @model_serializer(mode="wrap")
    def _as_ever(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys, `held` only if it is stated, as `Rollout` does with `accept`."""
        written: dict[str, Any] = write(self)
        return written if self.held else {key: each for key, each in written.items() if key != "held"}


class Window(Strict):
    """The time in which nodes may change: on `days`, from `start` to `end` (the next day if earlier)."""

    days: list[Day] = Field(default=list(DAYS), min_length=1)
    start: str
    end: str
    zone: str = "UTC"

    @field_validator("start", "end")
    @classmethod
    def _clock(cls, stated: str) -> str:
        """Return a time of day; raise ValueError if it is not `HH:MM`."""
        if not CLOCK.fullmatch(stated):
            raise ValueError("a time of day such as 22:30")
        return stated

    @field_validator("end")
    @classmethod
    def _not_the_start(cls, stated: str, info: ValidationInfo) -> str:
        """Return the end; raise ValueError if it is the start, because such a window never opens."""
        if stated == info.data.get("start"):
            raise ValueError("another time than start; to change nodes at any time, leave out window")
        return stated

    @field_validator("zone")
    @classmethod
    def _known(cls, stated: str) -> str:
        """Return a time zone's name; raise ValueError if it is not known."""
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            ZoneInfo(stated)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # `Europe` is a folder
            raise ValueError("a time zone such as Europe/Berlin") from None
        return stated


class Rollout(Strict):
    """The rules of an upgrade.

    Attributes:
        canary: nodes that change first, in a separate batch; `one_per_group` or `none`.
        serial: sizes of the batches after them, as numbers or percentages of all; the last one repeats.
        max_fail: number of nodes of a batch that may fail before the upgrade stops; a canary must not fail.
        on_failure: `rollback` returns a failed node to its last good set, `hold` leaves it drained.
        together: sets of nodes that change in the same batch, such as an NVLink domain.
        settle_s: seconds after a boot in which a node must reach its declared state.
        accept: the level of `gpuprov accept` that a node must pass before it returns to service.
    """

    canary: Literal["one_per_group", "none"] | list[str] = "one_per_group"
    serial: list[Share] = Field(default=[1], min_length=1)
    max_fail: Share = 0
    on_failure: Literal["rollback", "hold"] = "rollback"
    together: list[str] = Field(default=[])
    hooks: Hooks = Hooks()
    window: Window | None = None
    settle_s: int = Field(default=60, ge=0, le=604_800)
    accept: Literal["quick", "full"] | None = None

    @field_validator("serial", mode="before")
    @classmethod
    def _listed(cls, stated: object) -> object:
        """Return a single batch size as a list."""
        return stated if isinstance(stated, list) else [stated]

    @model_serializer(mode="wrap")
    def _as_ever(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys, `accept` only if it is stated."""
        # The lock has a digest of the fleet: one without new values keeps its digest.
        written: dict[str, Any] = write(self)
        return written if self.accept else {key: each for key, each in written.items() if key != "accept"}

    @field_validator("serial")
    @classmethod
    def _moving(cls, stated: list[int | str]) -> list[int | str]:
        """Return the batch sizes; raise ValueError if one is 0."""
        if any(size in (0, "0%") for size in stated):
            raise ValueError("batches of at least one node")
        return stated


def portion(share: int | str, whole: int) -> int:
    """Return a share as a number of nodes: a number unchanged, a percentage of `whole` rounded down."""
    return share if isinstance(share, int) else whole * int(share.rstrip("%")) // 100
