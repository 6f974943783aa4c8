"""WHAT is trained: models from a small list of layers, data, schedules, and the oracle of a whole step."""
