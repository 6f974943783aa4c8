"""The pytest plugin: the fixture `assert_parity`, and `--parity-save DIR` to keep the arrays of what differs.

Every pytest session of the environment loads this module, so what it needs is imported when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--parity-save`."""
    parser.getgroup("parity").addoption(
        "--parity-save",
        metavar="DIR",
        help="save the arrays of comparisons that fail in the fixture assert_parity as .npy files below DIR",
    )


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`parity.assert_parity`; with --parity-save it also keeps the arrays of what differs, and says where."""
    from parity.library import ParityError, compare
    from parity.library.check import warn_of_suspects
    from parity.library.saving import saved_note

    directory = request.config.getoption("--parity-save")

    def check(actual: Any, expected: Any, **options: Any) -> None:
        __tracebackhide__ = True
        report = compare(actual, expected, **options)
        if report.passes:
            warn_of_suspects(report, stacklevel=3)
            return
        error = ParityError(report)
        if directory is not None:
            folder = request.config.invocation_params.dir / directory
            arrays = (actual, expected, options.get("exact"))
            error.add_note(saved_note(folder, request.node.nodeid, report, *arrays))
        raise error

    return check
