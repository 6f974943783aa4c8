"""Numbers to verdicts: metrics, tolerances, envelopes, and the backends that exceed them."""
