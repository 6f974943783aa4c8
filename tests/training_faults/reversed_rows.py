"""A loader that hands out each batch backwards."""


def batch(step, rows):
    return rows[::-1].copy()
