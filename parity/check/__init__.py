"""`parity check`: a reference in PyTorch and code that should do the same, as people have them."""

from parity.errors import UserError


class CheckError(UserError):
    """A pair of files cannot be checked; the message has the file, the line and what to do."""
