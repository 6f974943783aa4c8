"""The part of `parity.models` that runs in a worker."""
