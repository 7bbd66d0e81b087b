"""Text without passwords and tokens, for logs, messages and state that other users can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from gpuprov.untrusted.urls import HIDDEN, public_urls

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_WORDS = (
    r"pass(?:w(?:or)?d|wort|phrase|code|key)?s?|pwd|pw|secrets?|tokens?|api[_.-]?keys?|credentials?|creds|auth"
    r"|authorization|bearer|basic|cookies?|(?:php)?sess(?:ion)?(?:[_.-]?(?:id|key))?|sid|jwt|otp|csrf|xsrf"
    r"|(?:access|account|private|priv|shared|signing|encryption|license|master|service|webhook|ssh|storage|luks|auth"
    r"|functions|subscription)[_.-]?keys?"
    r"|key[_.-]?data|sig|signature|dsn|connection[_.-]?string|sas|psk|community"
)
# The part of a name after a word, as in `token.of.the.mirror`, is bounded, so that the time of a search in
# `token.token.token…` grows with its length only. The part in front of the word is kept in any case, and
# not in the pattern.
_NAME = (
    r"(?<![A-Za-z0-9])(?:" + _WORDS + r")(?:[_.-][A-Za-z0-9_.-]{0,200}+)?+(?![A-Za-z0-9])"
    r"|(?<![A-Za-z0-9_])[A-Za-z0-9_]*(?:password|passwd|passphrase|secret|token|apikey|accesskey|privatekey"
    r"|sharedkey|[a-z]pwd|community|(?:admin|bind|db|my|proxy|root|smtp|sql|ssh|user)pw|(?:db|proxy|smtp|sql|ssh)pass"
    r"|(?-i:[a-z0-9](?:Pwd|Pass|Key|Auth)|[A-Z0-9](?:PWD|PASS)))[A-Za-z0-9_]{0,200}+"
)
_LATER = r"(?![\"'\\\s]*\(hidden\))"
"""Condition of a value that an earlier rule has not hidden already."""


def _unquoted(separator: str) -> Rule:
    """Return the rule for values without quotes, which follow a name and a separator."""
    # Such a value ends with its line: a password may contain blanks, commas and semicolons. A backslash
    # continues a line, and `%3D` is `=` in a URL.
    pattern = r"((?:" + _NAME + r")\\*[\"']?" + separator + ")" + _LATER + r"(?:\\\n|[^\n<])+"
    return re.compile(pattern, re.I), r"\g<1>" + HIDDEN


_WITH_BLANK = _unquoted(r"(?:\s*(?:[:=]|%3[AD])>?\s*+|[ \t]++)")
_RULES = (
    (re.compile(r"-----BEGIN [^\n-]*-----.*?(?:-----END[^\n]*|\Z)", re.S), HIDDEN),
    # A quoted value ends at the same kind of quote, which follows backslashes in JSON inside JSON.
    (
        re.compile(
            r"((?:" + _NAME + r")\\*[\"']?\s*[:=]>?\s*)(\\*[\"'])(?:(?!(?<!\\)\2).)*(?:\2|$)", re.I | re.M
        ),
        r"\g<1>\g<2>" + HIDDEN + r"\g<2>",
    ),
    (re.compile(r"(<[^<>]*+>)([^<]+)"), lambda found: _element(found)),
    _WITH_BLANK,
    (
        re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user|-p|-P)[ =]?)" + _LATER + r"\S*[^\s0-9]\S*", re.M),
        r"\g<1>" + HIDDEN,
    ),
    (re.compile(r"((?:^|\s)-U[ =]?)" + _LATER + r"[^\s:]*+:\S+", re.M), r"\g<1>" + HIDDEN),
    (re.compile(r"(?<![^\s\"'/@:])[^\s\"'/@:]++:[^\s@]{1,200}+@(?=[A-Za-z0-9\[])"), HIDDEN + "@"),
    (
        re.compile(
            r"\beyJ[\w-]{6,}(?:\.[\w-]*){0,4}"
            r"|(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_|glpat-|gl[a-z]{2,5}-|xox[a-z]-|xapp-|hf_|nvapi-|npm_|pypi-"
            r"|dckr_[a-z]+_|dop_v1_|sk[_-]|rk_|pk_live_|whsec_|hv[sbr]\.|AKIA|ASIA|AIza|ya29\.|SG\.|PMAK-"
            r"|AGE-SECRET-KEY-|shp[a-z]{2}_|lin_api_|tskey-)[\w.=-]{6,}"
            r"|\$(?:[0-9][a-z]?|y|gy|argon2\w*|pbkdf2\w*)\$\S+"
        ),
        HIDDEN,
    ),
    # A long run of upper case, lower case and digits, unlike words, versions and paths.
    (
        re.compile(
            r"(?<![\w+/=-])(?!(?:[A-Z]+-)?[0-9a-f]{8}-[0-9a-f]{4}-)(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])(?=[\w+/-]*[0-9])[\w+/-]{28,}={0,2}"
        ),
        HIDDEN,
    ),
)
"""Patterns and their replacements, applied one after the other."""
_OF_SETTINGS = (
    (
        re.compile(r"(--(?:[a-z]+-){0,4}(?:" + _WORDS + r")[ \t]++)" + _LATER + r"\S+", re.I),
        r"\g<1>" + HIDDEN,
    ),
    *(_unquoted(r"\s*(?:[:=]|%3[AD])>?\s*+") if rule is _WITH_BLANK else rule for rule in _RULES),
)


_WORD = re.compile(_WORDS, re.I)
"""A word for secrets anywhere in a tag."""


def _element(found: re.Match[str]) -> str:
    """Return a tag with the text after it, which is hidden if the tag contains a word for secrets."""
    return found[1] + (HIDDEN if _WORD.search(found[1]) else found[2])


def public(text: str) -> str:
    """Return a text with everything that looks like a password or token replaced by `(hidden)`.

    Replaced are: secrets of URLs (`public_urls`); PEM blocks; values after names such as `password`,
    `api_key` or `token` with `:`, `=` or a blank, unquoted ones up to the end of the line; texts of XML
    elements whose tag has such a word; arguments of `-u`, `-p`, `-P`, `--user` and `--proxy-user` that are
    not numbers, and `USER:PASSWORD` after `-U`; `USER:PASSWORD` before `@`; tokens with a known beginning,
    such as `ghp_` or `hf_`, JSON Web Tokens and password hashes; and runs of 28 or more characters with upper
    case, lower case and digits. Harmless text can be hidden, too.
    """
    return _hidden(text, _RULES)


def public_settings(text: str) -> str:
    """Return the output of commands that show settings as `public` does, except that the name of a secret
    needs `:` or `=` after it, or `--` before it: `passwordauthentication no` of `sshd -T` is kept.
    """
    return _hidden(text, _OF_SETTINGS)


def _hidden(text: str, rules: Iterable[Rule]) -> str:
    """Return a text with the secrets of its URLs, and what the rules match, replaced."""
    text = public_urls(text)
    for pattern, instead in rules:
        text = pattern.sub(instead, text)
    return text
