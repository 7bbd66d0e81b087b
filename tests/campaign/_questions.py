"""Questions that nodes answer: the headings of docs/effective.md, each with the checks that ask it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Question:
    """One question about a node's behaviour.

    Attributes:
        text: the question.
        checks: patterns of fnmatch(3); a check belongs to the first question with a pattern that matches.
    """

    text: str
    checks: tuple[str, ...]


QUESTIONS = (
    Question(
        "Which hardware and which system is this?",
        ("gpu.count", "gpu.model", "hardware.*", "system.*", "gpu.nvswitches"),
    ),
    Question(
        "Which file does a program load, and does it belong to a package of the lock?",
        ("*.unpackaged", "*.library", "cudnn.header", "cuda.nvcc", "cuda.default", "pins.files"),
    ),
    Question(
        "Which driver answers now, and which one after the next boot?",
        (
            "driver.packages",
            "driver.[!p]*",
            "nouveau.*",
            "kernel.*",
            "module.*",
            "secure_boot.*",
            "reboot.*",
            "gpu.visible",
        ),
    ),
    Question(
        "Which version of each package is installed, and which would the package manager take?",
        ("*packages", "*.absent", "*.forerunners", "storage.clients", "dpkg.*", "repositories.*", "pins.*"),
    ),
    Question(
        "What do the GPUs do now, and after the next boot?",
        ("gpu.*", "fabric_manager.*", "imex.*", "gpudirect.*", "profiling.*"),
    ),
    Question(
        "What are the environment and the limits of a login, a command and a service?",
        ("*.environment", "tuning.debugging", "tuning.limits", "tuning.service_limits"),
    ),
    Question("Which configuration does NCCL read?", ("nccl.*",)),
    Question("What does a container get?", ("container_toolkit.*", "docker.*", "containerd.*", "podman.*")),
    Question(
        "What is the kernel set to now, and after the next boot?",
        ("tuning.*", "scratch.*", "storage.client_options"),
    ),
    Question("Who can log in, and which packets come in?", ("ssh.*", "firewall.*")),
    Question("Which values does monitoring read?", ("monitoring.*",)),
    Question("Does the node judge its health, with unchanged files?", ("health.*",)),
)


def by_question(checks: Iterable[str]) -> dict[Question, list[str]]:
    """Return the checks of each question, sorted.

    Raises:
        LookupError: a check belongs to no question.
    """
    found: dict[Question, list[str]] = {question: [] for question in QUESTIONS}
    for check in sorted(checks):
        found[_question(check)].append(check)
    return found


def _question(check: str) -> Question:
    """Return the question that a check answers; LookupError without one."""
    for question in QUESTIONS:
        if any(fnmatchcase(check, pattern) for pattern in question.checks):
            return question
    raise LookupError(f"{check} belongs to no question of {__name__}")
