"""Mutants that no test can kill: the file and the change, with the reason."""

from __future__ import annotations

PAUSE = "a pause between two tries has no exact length"

EQUIVALENT: dict[tuple[str, str], str] = {
    ("gpuprov/access/deadman.py", "time.sleep(2) -> time.sleep(3)"): PAUSE,
    (
        "gpuprov/access/deadman.py",
        "while time.monotonic() - begun < guard.seconds + 60:"
        " -> while time.monotonic() - begun < guard.seconds + 61:",
    ): PAUSE,
    (
        "gpuprov/access/deadman.py",
        "mark = secrets.token_hex(8) -> mark = secrets.token_hex(9)",
    ): "a longer mark",
    (
        "gpuprov/apply/kernel_modules/packing.py",
        "while not reader.eof and not reader.needs_input and len(plain) <= limit:"
        " -> while not reader.eof and not reader.needs_input and (len(plain) < limit):",
    ): "lzma returns less than was requested only at the end or without input",
    (
        "gpuprov/model/nodeset.py",
        "token = _LEFT.set([names or ALTOGETHER] * 2) -> token = _LEFT.set([names or ALTOGETHER] * 3)",
    ): "only the first two numbers are read",
    (
        "gpuprov/model/nodeset.py",
        "(text, int(number or 0), number) for text, number in"
        ' zip(parts[::2], [*parts[1::2], ""], strict=True)'
        " -> (text, int(number or 0), number)"
        ' for text, number in zip(parts[::2], [*parts[1::2], ""], strict=False)',
    ): "both have the same length",
    (
        "gpuprov/ssh/answers.py",
        "[first, *_] = error.errors(include_url=False, include_input=False)"
        " -> [first, *_] = error.errors(include_url=False, include_input=True)",
    ): "the input of an error is not printed",
    ("gpuprov/ssh/contained.py", "make_folders(path.parent) -> pass"): "state_dir makes this folder",
    (
        "gpuprov/ssh/route.py",
        'itself = (_first(there, "hostname") or host'
        ', port or int(_first(there, "port") or 22)) == to -> '
        "itself = ((_first(there, 'hostname') and host)"
        ', port or int(_first(there, "port") or 22)) == to',
    ): "without a hostname ssh is not configured, and then the jump host is stated",
    (
        "gpuprov/ssh/workers/crew.py",
        "time.sleep(0.5 if still else 0) -> time.sleep(0.5 if (not (still)) else 0)",
    ): PAUSE,
    (
        "gpuprov/ssh/workers/crew.py",
        "time.sleep(0.5 if still else 0) -> time.sleep(0.5 if still else 1)",
    ): PAUSE,
    (
        "gpuprov/ssh/workers/sites.py",
        "self._looks, self._changes = 1, 0 -> self._looks, self._changes = 1, 1",
    ): "the first number of a change is the time of day, which is higher",
}
