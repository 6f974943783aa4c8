"""The worker side of a training; runs on Python 3.8."""
