"""The rows of a run: results.sqlite and results.json, written, read and resumed."""
