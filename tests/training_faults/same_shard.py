"""Every rank reads the first one's rows."""


def shard(rows, rank, ranks):
    return rows[: len(rows) // ranks]
