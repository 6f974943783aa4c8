"""The report's templates: they escape what they print, and make invisible characters visible."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from parity.config.nodes import printable

TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, /, **values: Any) -> Markup:
    """A rendered template; all values are escaped."""
    return Markup(templates().get_template(f"{template}.html").render(values))  # noqa: S704 - autoescape is on


@cache
def templates() -> Environment:
    """The templates; they escape values, and make invisible and direction-changing characters visible."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )


def visible(value: Any) -> Any:
    """Control characters, lone surrogates and the like as escapes; what is HTML already as it is."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def source(name: str) -> str:
    """A file that the page includes verbatim."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def n_bytes(text: str) -> int:
    """The size of a text in the file."""
    return len(text.encode())
