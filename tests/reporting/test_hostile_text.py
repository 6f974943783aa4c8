"""What somebody planted in a stored run reaches the terminal as text only."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from parity.reporting.console.run import render
from tests.reporting import ci_runs
from tests.reporting.stored_runs import changed, plain


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
@pytest.mark.parametrize("width", [60, 140])
def test_the_console_prints_no_control_character(verbosity, width):
    out = io.StringIO()
    results = ci_runs.hostile()
    frameworks = ("\x1b]0;x\x07", "[bold]\r\n::error::")
    pairs = zip(plain(results.backends), frameworks, strict=True)
    results = changed(results, backends=[{**row, "framework": name} for row, name in pairs])
    render(results, Console(file=out, width=width), verbosity=verbosity)
    strange = {c for c in out.getvalue() if not c.isprintable()} - {"\n"}
    assert strange == set()


def test_a_line_break_in_a_text_begins_no_line():
    out = io.StringIO()
    render(ci_runs.hostile(), Console(file=out, width=4_000), verbosity=1)
    assert not [line for line in out.getvalue().splitlines() if line.startswith(("::error", "::add-mask"))]


def test_the_op_of_a_stored_run_is_no_markup():
    results = ci_runs.many(1)
    results = changed(results, cases=[{**plain(results.cases[0]), "op": "[/] [red]op"}])
    out = io.StringIO()
    render(results, Console(file=out, width=140))
    assert "\n[/] [red]op\n" in out.getvalue()
