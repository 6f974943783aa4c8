"""Numbers to verdicts: metrics, tolerances, envelopes, and the side that is off."""
