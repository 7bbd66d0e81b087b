"""Lines of a text that a node, a mirror or a worker sent, cut to a stated length.

A regular expression that is searched in a complete text can take time that grows with the square of its
length, and no other thread runs meanwhile. Readers of large texts therefore match a pattern at the start of
one line (`re.match`), or split the line. `tests/unit/hostile/test_slow_texts.py` measures every reader.
"""

from __future__ import annotations

from collections.abc import Iterator

_PIECE = 1 << 16
"""Characters that are split at a time: a list of all lines takes 30 times the memory of a text of short ones.
"""
LINE = 1 << 14
"""Maximum length of a line in characters; the rest of a longer line is ignored. The longest recorded line, of
flags in /proc/cpuinfo, has about 2,000.
"""


def lines_of(text: str, longest: int = LINE) -> Iterator[str]:
    r"""Yield the lines of a text, as `\n` ends them, each cut to `longest` characters.

    Other line separators, such as `\r`, do not end a line. A text that ends with `\n` has an empty last line,
    and an empty text is one empty line.
    """
    begin = 0
    while (end := text.find("\n", begin + _PIECE)) >= 0:
        yield from (line[:longest] for line in text[begin:end].split("\n"))
        begin = end + 1
    yield from (line[:longest] for line in text[begin:].split("\n"))
