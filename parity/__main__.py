"""`python -m parity` is `parity`."""

from parity.cli import main

# Processes that multiprocessing starts, as Dask does, import the main module.
if __name__ == "__main__":
    main()
