"""results.json: its rows, written, read and resumed."""
