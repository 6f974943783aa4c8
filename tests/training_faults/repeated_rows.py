"""A loader that hands out the batch before once more in every second step."""

_seen = {}


def batch(step, rows):
    _seen[step] = rows
    return _seen[step - 1] if step % 2 == 0 else rows
