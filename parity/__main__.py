"""`python -m parity` is `parity`."""

from parity.cli import main

main()
