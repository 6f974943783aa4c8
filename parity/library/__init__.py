"""For tests: `compare` and `assert_parity` on the tensors of any framework, in any nesting."""

from parity.library.check import assert_parity, compare
from parity.library.report import Agreement, Hint, ParityError, ParityWarning, Report, Row

__all__ = ["Agreement", "Hint", "ParityError", "ParityWarning", "Report", "Row", "assert_parity", "compare"]
