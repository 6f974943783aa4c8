"""The child side of the process boundary; `parity.worker.main` documents the protocol."""
