"""PAM's decision on a login without credentials, from the stack of a service (pam.conf(5)).

Modules are not run: one that checks a user's own credentials or account is assumed to refuse, one that looks
at anything else may answer both ways. A stack that can still succeed admits users who proved nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpuprov.errors import NodeFailed
from gpuprov.untrusted.kept import kept

KINDS = {"auth": "auth_err", "account": "perm_denied"}
"""Type of line → the answer of a module that refuses."""
CHECKING = {
    *("aad", "authd", "authd_exec", "centrifydc", "deny", "duo", "fprintd", "google_authenticator"),
    *("himmelblau", "krb5", "ldap", "lsass", "mysql", "oath", "oslogin_login", "pgsql", "pkcs11", "radius"),
    *("radius_auth", "sss", "sss_gss", "systemd_home", "tacplus", "u2f", "unix", "vas3", "winbind", "yubico"),
}
"""Modules that check a credential or an account of the user; `deny` refuses everybody."""
GRANTING = {"permit", "rootok"}  # sshd runs as root
WORDS = {
    "required": {"success": "ok", "new_authtok_reqd": "ok", "ignore": "ignore", "default": "bad"},
    "requisite": {"success": "ok", "new_authtok_reqd": "ok", "ignore": "ignore", "default": "die"},
    "sufficient": {"success": "done", "new_authtok_reqd": "done", "default": "ignore"},
    "optional": {"success": "ok", "new_authtok_reqd": "ok", "default": "ignore"},
}
LINE = re.compile(r"-?(auth|account)\s+(\[[^\]]*\]|\S+)\s+(\S+)", re.IGNORECASE)
MODULE = re.compile(r"(?:(?:/usr)?/lib(?:64)?/(?:[\w-]+/)?security/)?pam_(\w+)\.so")
NESTING = 16
LINES_AT_MOST = 2000
"""Maximum number of lines of a stack; those of a file count each time that it is included."""
CHARACTERS_AT_MOST = 4096
"""Maximum length of a line, with those that continue it."""

Files = Mapping[str, Iterable[tuple[str, str]]]
"""Service → place and text of its lines without comments."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a stack; a substack has its own lines, and counts as one line for jumps over it."""

    place: str
    text: str
    actions: Mapping[str, str]
    module: str
    inner: tuple[Rule, ...] = ()


class _State(NamedTuple):
    """libpam's impression of the lines so far (None: none yet), and whether its status is success."""

    impression: bool | None
    success: bool


States = dict[_State, Rule | None]
"""State → the line that led to it last with a success."""


def admitting(files: Files, kind: str) -> Rule | None:
    """Return the line with which a stack admits a user without credentials; None if it refuses.

    Args:
        files: the files of the service `sshd`, of those that it includes, and `other`.
        kind: `auth` or `account`.

    Raises:
        NodeFailed: the stack has more than `LINES_AT_MOST` lines, or longer ones than `CHARACTERS_AT_MOST`.
    """
    service = "sshd" if "sshd" in files else "other"
    rules = tuple(_rules(files, service, kind, iter(range(LINES_AT_MOST))))
    ended = _evaluated(rules, {_State(None, False): None}, KINDS[kind])
    return next((rule for state, rule in ended.items() if state == _State(True, True)), None)


def _rules(
    files: Files, service: str, kind: str, numbers: Iterator[int], above: tuple[str, ...] = ()
) -> Iterator[Rule]:
    """Yield the lines of one type of a service, with those of included files in their place.

    A file that does not exist, includes itself, or is included more than `NESTING` levels deep is a line that
    refuses: PAM fails there too.

    Args:
        files: as in `admitting`.
        service: name of the file.
        kind: `auth` or `account`.
        numbers: one for each line that the whole stack may still have.
        above: the files that include this one.

    Raises:
        NodeFailed: as `admitting`.
    """
    if service not in files or service in above or len(above) > NESTING:
        yield Rule("", f"no {service}", WORDS["requisite"], "deny")
        return
    within = (*above, service)
    for place, text in _joined(files[service], numbers):
        if included := re.match(r"@include\s+(\S+)", text):
            yield from _rules(files, included[1], kind, numbers, within)
            continue
        found = LINE.match(text)
        if not found or found[1].lower() != kind:
            continue
        control, module = found[2].lower(), found[3]
        if control == "include":
            yield from _rules(files, module, kind, numbers, within)
        elif control == "substack":
            yield Rule(place, text, {}, "", tuple(_rules(files, module, kind, numbers, within)))
        else:
            known = MODULE.fullmatch(module)
            yield Rule(place, text, _actions(control), known[1] if known else module)


def _joined(rows: Iterable[tuple[str, str]], numbers: Iterator[int]) -> Iterator[tuple[str, str]]:
    """Yield place and text of lines, with a line that ends with a backslash and the next one as one.

    The place is that of the first. Each line takes one of `numbers`.

    Raises:
        NodeFailed: as `admitting`.
    """
    begun, parts, length = "", list[str](), 0
    for place, text in rows:
        length += len(text) + 1
        if next(numbers, None) is None:
            raise NodeFailed("PAM's stack of sshd is too long", expected=f"at most {LINES_AT_MOST} lines")
        if length > CHARACTERS_AT_MOST:
            raise NodeFailed(
                "a line of PAM's stack of sshd is too long",
                expected=f"at most {CHARACTERS_AT_MOST} characters",
            )
        begun = begun if parts else place
        parts.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            yield begun, " ".join(parts)
            parts, length = [], 0
    if parts:
        yield begun, " ".join(parts)


@kept(64, CHARACTERS_AT_MOST)
def _actions(control: str) -> Mapping[str, str]:
    """Return answer of a module → action of PAM; an unknown word counts as `required`, as in libpam."""
    if control.startswith("["):
        return dict(re.findall(r"\b(\w+)=(\w+)", control))
    return WORDS.get(control, WORDS["required"])


def _evaluated(rules: tuple[Rule, ...], begin: States, refusal: str) -> States:
    """Return the states in which a stack can end → the line that led to it, for every answer that its modules
    can give.

    Args:
        begin: the states before the first line.
        refusal: the answer of a module that refuses.
    """
    arriving: list[States] = [{} for _ in range(len(rules) + 1)]
    arriving[0] = begin
    for at, rule in enumerate(rules):
        if rule.inner:
            arriving[at + 1] = _evaluated(rule.inner, arriving[at], refusal) | arriving[at + 1]
            continue
        for state, why in arriving[at].items():
            for answer in _answers(rule.module, refusal):
                action = rule.actions.get(answer, rule.actions.get("default", "bad"))
                after, jump = _after(state, answer, action)
                target = len(rules) if jump is None else at + 1 + jump
                if target > len(rules):  # libpam refuses a jump over the end
                    after, target = _State(False, False), len(rules)
                arriving[target].setdefault(after, rule if answer == "success" else why)
    return arriving[-1]


def _answers(module: str, refusal: str) -> tuple[str, ...]:
    """Return the answers that a module can give to a user without credentials.

    A module of `GRANTING` only succeeds and one of `CHECKING` only refuses; any other may do both, or ignore.
    """
    if module in GRANTING:
        return ("success",)
    return (refusal,) if module in CHECKING else ("success", refusal, "ignore")


def _after(state: _State, answer: str, action: str) -> tuple[_State, int | None]:
    """Return the state after a line, and how many lines PAM skips; None for all.

    Args:
        action: of pam.conf(5): `ok`, `bad`, `die`, `done`, `ignore`, `reset` or a number.
    """
    if action in ("bad", "die"):
        return _State(False, False), None if action == "die" else 0
    if action == "reset":
        return _State(None, False), 0
    if action == "ignore" or answer == "ignore":
        return state, 0
    if state.impression is None or state == _State(True, True):
        success = answer == "success"
        state = _State(True if success else state.impression, success)
    if action == "done" and state.impression:
        return state, None
    return state, int(action) if action.isdecimal() and len(action) < 4 else 0
