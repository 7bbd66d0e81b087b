"""Rendering of HTML: jinja2 with autoescape and without control characters; no other module makes HTML."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from gpuprov.untrusted import printable


def page_template(name: str, **known: object) -> Template:
    """Return a template of `templates/`, read from the package; `known` are functions that it may call, also
    as filters.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.globals.update(known)
    environment.filters.update({key: call for key, call in known.items() if callable(call)})
    return environment.from_string((files(__package__) / "templates" / name).read_text("utf-8"))


def _shown(value: object) -> object:
    """Return text without control characters; safe markup and other values unchanged."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
