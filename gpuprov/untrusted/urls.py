"""URLs without secrets: users, passwords, signatures, and tokens in the path.

Also runs on nodes: Python 3.6, standard library only.
"""

import re

HIDDEN = "(hidden)"
"""Text in place of a secret."""

_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_WORD = re.compile(r"\S+")
_BEGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_REST = re.compile(r"[^\s'\"<>\\]*")
_TRAILING = ".,;:)]}"
_CAPABILITY = re.compile(
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z0-9_]{16,}|.*[=:;%@~].*|.{81,})\Z", re.I
)


def public_url(url):  # type: (str) -> str
    """Return a URL without user, password, query, fragment, and parts of its path that look like tokens.

    A part looks like a token if it is a UUID, has 16 or more letters, digits and `_` only, has more than 80
    characters, or contains one of `=:;%@~`. Parts, query and fragment are replaced by `(hidden)`; user and
    password are removed. If a host cannot be distinguished from a password, only the scheme is kept; of a
    text without `://`, nothing.
    """
    scheme, there, rest = url.partition("://")
    if not there:
        return HIDDEN
    place, mark, tail = _parts(rest)
    user, _, place = place.rpartition("@")
    host, slash, path = place.partition("/")
    if "@" in tail or "/" in user or not _HOST.match(host):
        return scheme + "://" + HIDDEN
    parts = [HIDDEN if _CAPABILITY.match(part) else part for part in path.split("/")]
    return scheme + "://" + host + slash + "/".join(parts) + (mark + HIDDEN if mark else "")


def origin(url):  # type: (str) -> str
    """Return scheme, host and port of a URL whose path itself grants access: `https://mirror:8443`."""
    return "/".join(public_url(url).split("/")[:3])


def origin_and_file(url):  # type: (str) -> str
    """Return scheme, host and the last part of the path, of a URL whose folders may grant access.

    The folders are replaced by one `(hidden)`; the last part is hidden if it looks like a token.
    """
    whole = public_url(url).partition("?")[0].partition("#")[0].split("/")
    if len(whole) < 5:
        return "/".join(whole)
    return "/".join(whole[:3]) + "/" + HIDDEN + "/" + whole[-1]


def public_urls(text):  # type: (str) -> str
    """Return a text with each of its URLs in the form of `public_url`; other text is kept."""
    return _WORD.sub(lambda found: _in_word(found.group()), text) if "://" in text else text


def _in_word(word):  # type: (str) -> str
    """Return a word without blanks with the public form of each of its URLs.

    A URL reaches to the last @ of the word, if one follows: a password may contain quotes and slashes.
    """
    made, at, last = [], 0, word.rfind("@") + 1
    found = _BEGIN.search(word)
    while found:
        rest = _REST.match(word, max(found.end(), last))
        end = rest.end() if rest else len(word)
        made += [word[at : found.start()], _within(word[found.start() : end])]
        at = end
        found = _BEGIN.search(word, at)
    return "".join(made) + word[at:]


def _parts(rest):  # type: (str) -> tuple[str, str, str]
    """Split at the first `?` or `#`; return the part before it, the character, and the part after it."""
    cut = min([at for at in map(rest.find, "?#") if at >= 0] or [len(rest)])
    return rest[:cut], rest[cut : cut + 1], rest[cut + 1 :]


def _within(url):  # type: (str) -> str
    """Return a URL's public form; punctuation after it, as at the end of a sentence, is kept."""
    cut = len(url.rstrip(_TRAILING))
    return public_url(url[:cut]) + url[cut:]
