"""Templates that accept text of one kind only: source text in a script, Markdown in an issue."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


@cache
def template(name: str, kind: type[str], *filters: Callable[..., Any]) -> jinja2.Template:
    """The template `name`; every value must be a `kind`, or pass one of the filters that make one."""
    import jinja2

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parity.repro"),
        finalize=checked,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - neither is HTML; `checked` is the guard
    )
    environment.filters |= {function.__name__: function for function in filters}
    return environment.get_template(name)
