"""The worker's side of a training; runs on Python 3.8."""
