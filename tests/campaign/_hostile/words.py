"""Hostile text: payloads for every interpreter, and their places in a document."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from tests.campaign._hostile.field import Field

Payload = Callable[[Field], str]


def _of(template: str) -> Payload:
    """Return a payload in which PROGRAM is the program, and WORD the program without spaces."""
    return lambda field: template.replace("PROGRAM", field.program).replace("WORD", spaceless(field))


ANSIBLE: tuple[Payload, ...] = (
    _of("{{ lookup('ansible.builtin.pipe', 'PROGRAM') }}"),
    _of("{{lookup('pipe','WORD')}}"),
    _of("{% if lookup('pipe', 'PROGRAM') %}x{% endif %}"),
    _of("{{ cycler.__init__.__globals__.os.popen('PROGRAM').read() }}"),
    _of("{{query('pipe','WORD')|first}}"),
    _of("{% set x = lookup('pipe', 'PROGRAM') %}{#"),
    _of("{\"__ansible_unsafe\": \"{{ lookup('pipe', 'PROGRAM') }}\"}"),
)
SHELL: tuple[Payload, ...] = (
    lambda field: f"$({field.program})",
    lambda field: f"$({spaceless(field)})",
    lambda field: f"`{field.program}`",
    lambda field: f"`{spaceless(field)}`",
    lambda field: f"; {field.program} #",
    lambda field: f";{spaceless(field)};",
    lambda field: f"x' ; {field.program} ; '",
    lambda field: f"x';{spaceless(field)};'",
    lambda field: f'x" ; {field.program} ; "',
    lambda field: f"\n{field.program}\n",
    lambda field: f"|{spaceless(field)}",
    lambda field: f"&& {field.program}",
    lambda field: f"$(\n{field.program}\n)",
    lambda field: f"-oProxyCommand={spaceless(field)}",
    lambda field: f"--use-compress-program={spaceless(field)}",
)
PATHS: tuple[Payload, ...] = (
    lambda field: "../" * 3 + f"outside/written-{field.number}",
    lambda field: "../" * 12 + f"{str(field.written).lstrip('/')}",
    lambda field: str(field.written),
    lambda field: f"x/../../../{field.written.name}",
    lambda field: "..",
    lambda field: ".",
    lambda field: "\\..\\..\\x",
    lambda field: f"x\0{field.written}",
    lambda field: f"~root/{field.written.name}",
    lambda field: f"file://{field.written}",
)
TERMINAL: tuple[Payload, ...] = (
    lambda field: "\x1b[2J\x1b[H",
    lambda field: "\x1b]0;owned\x07",
    lambda field: "\x1b]52;c;ZWNobw==\x07",
    lambda field: "\r\x1b[K node9: in sync",
    lambda field: "\x9b31m",
    lambda field: "\x85\x90\x9c",
    lambda field: "\u202egnp.exe",
    lambda field: "\u2066x\u2069",
    lambda field: "\x00\x01\x02\x7f",
    lambda field: "\b\b\b\b",
    lambda field: "\x0b\x0c",
)
PAGES: tuple[Payload, ...] = (
    lambda field: f"<script>owned({field.number})</script>",
    lambda field: f'"><img src=x onerror=owned({field.number})>',
    lambda field: f"' onmouseover='owned({field.number})",
    lambda field: "]]><owned/>",
    lambda field: "&owned;&#0;",
    lambda field: "</style></svg><owned>",
    lambda field: "javascript:owned()",
    lambda field: "'); DROP TABLE runs; --",
    lambda field: "%' OR 1=1 --",
    lambda field: "\nowned_metric 1\n",
    lambda field: '"} 1\nowned{a="',
)
BOMBS: tuple[Payload, ...] = (
    lambda field: "a" * 40 + "!",
    lambda field: "(" * 3000,
    lambda field: " " * 20_000 + "x",
    lambda field: "0" * 5000,
    lambda field: "9" * 5000,
    lambda field: "1," * 10_000,
    lambda field: "0-99999999",
    lambda field: "gpu[0-99999999]",
    lambda field: "x\n" * 20_000,
    lambda field: "1.2.3." * 2000,
    lambda field: ("a=" * 3000) + "\n",
    lambda field: "<" * 3000,
    lambda field: "A" * 1_000_000,
)
ODD: tuple[Payload, ...] = (
    lambda field: "",
    lambda field: "nan",
    lambda field: "Infinity",
    lambda field: "-1",
    lambda field: "1e999",
    lambda field: "٣",
    lambda field: "\ud800",
    lambda field: "\U0010ffff",
    lambda field: "null",
    lambda field: "[]",
    lambda field: "%s %d %n",
    lambda field: "{0.__class__}",
    _of("!!python/object/apply:os.system ['PROGRAM']"),
    lambda field: "*",
    lambda field: "-rf",
    lambda field: "--help",
    lambda field: "#",
    lambda field: "é" * 200,
)
KINDS = {
    "ansible": ANSIBLE,
    "shell": SHELL,
    "path": PATHS,
    "terminal": TERMINAL,
    "page": PAGES,
    "bomb": BOMBS,
    "odd": ODD,
}
WORD = re.compile(r"[^\s\"',:=<>/]+")
NUMBERS = (0, -1, 2**31, 2**63, 10**18, 10**400, 1e308, -1e308, 0.1)


def spaceless(field: Field) -> str:
    """Return the program without spaces, for text that is split at them."""
    return field.program.replace(" ", "${IFS}")


def payload(rng: random.Random, field: Field, *kinds: str) -> str:
    """Draw a payload of any kind, or of the given ones."""
    kind = rng.choice(kinds or tuple(KINDS))
    return rng.choice(KINDS[kind])(field)


def around(rng: random.Random, field: Field, text: str, *kinds: str) -> str:
    """Replace a word of a text by a payload, or put the payload before or after it."""
    result = payload(rng, field, *kinds)
    words = list(WORD.finditer(text[:200_000]))
    if not words or rng.random() < 0.1:
        return result
    word = rng.choice(words)
    middle = rng.choice((result, word[0] + result, result + word[0], f"{word[0]} {result}"))
    return text[: word.start()] + middle + text[word.end() :]


def places(document: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        each = left.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each))
        for key in keys:
            found.append((each, key))
            if isinstance(each[key], (dict, list)):
                left.append(each[key])
    return found


def spoil(rng: random.Random, field: Field, document: Any, *kinds: str) -> None:
    """Change one place of a document: a payload in its text or key, another structure, or another value."""
    container, key = rng.choice(places(document) or [({"": ""}, "")])
    value, dice = container[key], rng.random()
    if isinstance(value, str) and dice < 0.85:
        container[key] = around(rng, field, value, *kinds)
    elif dice < 0.9 and isinstance(container, dict):
        container[payload(rng, field, *kinds)] = container.pop(key)
    elif dice < 0.95:
        container[key] = shape(rng, field, *kinds)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        container[key] = rng.choice(NUMBERS)
    else:
        container[key] = payload(rng, field, *kinds)


def shape(rng: random.Random, field: Field, *kinds: str) -> Any:
    """Draw a value of another structure."""
    result = payload(rng, field, *kinds)
    deep: Any = result
    for _ in range(rng.choice((1, 30, 60))):
        deep = [deep] if rng.random() < 0.5 else {"x": deep}
    return rng.choice((None, True, rng.choice(NUMBERS), result, [result], {result: result}, deep, [], {}))
