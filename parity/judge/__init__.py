"""Numbers to verdicts: metrics, tolerances, envelope, verdict rules, diagnosis."""
