"""All cells of a large run, in a few bytes each; the page's script shows them a page at a time.

The bytes, before gzip and base64: the length of the head (uint32, little endian), the head as JSON (the names that
columns refer to, and the number of cells), then the columns of all cells, the most urgent first: case (uint32), the
upper half of the error ratio as float32 (uint16; `UNKNOWN` without one), dtype, backend, status and verdict (uint8);
then the op of each case (uint16), and the ids of the cases, a line each.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

from parity.config.nodes import printable
from parity.reporting.results.cells import LABELS, Status
from parity.reporting.results.store import OVERVIEW, URGENCY, Store

UNKNOWN = 0xFFFF
MOST_CELLS = 2_000_000
"""Of the most urgent ones: about 5 MB. A browser holds 16 times that while it looks through them."""
MOST_NAMES = 255
COLUMNS = ("dtype", "backend", "status", "verdict")


class Numbering(dict[str, int]):
    """Numbers for names, in the order of their first use."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, len(self))


def every_cell(store: Store) -> dict[str, Any] | None:
    """The cells as base64, with how many they are; None if they have more backends or dtypes than a byte can name."""
    names = {column: Numbering() for column in (*COLUMNS, "op")}
    names["status"].update({status: rank for rank, status in enumerate(URGENCY)})
    cases, ops = bytearray(), bytearray()
    n_cases, last = 0, None
    rows = bytearray()
    ratios = bytearray()
    small = {column: bytearray() for column in COLUMNS}
    for op, backend, dtype, status, verdict, case, ratio in store.db.execute(OVERVIEW):
        if case != last:
            last, n_cases = case, n_cases + 1
            cases += f"{printable(case)}\n".encode()
            ops += names["op"][op].to_bytes(2, "little")
        rows += (n_cases - 1).to_bytes(4, "little")
        ratios += np.float32(-1 if ratio is None else ratio).tobytes()
        for column, name in zip(COLUMNS, (dtype, backend, status, verdict), strict=True):
            number = names[column][name]
            if number > MOST_NAMES:
                return None
            small[column].append(number)
    n = len(rows) // 4
    known = np.frombuffer(ratios, np.float32)
    order = np.lexsort((-np.nan_to_num(known, nan=np.inf), np.frombuffer(small["status"], np.uint8)))[:MOST_CELLS]
    upper = np.where(known == -1, UNKNOWN, known.view(np.uint32) >> 16).astype(np.uint16)
    head = {
        "n": len(order),
        "cases": n_cases,
        "names": {column: [printable(name) for name in names[column]] for column in names},
        "labels": [LABELS[Status(status)] for status in names["status"]],
    }
    text = json.dumps(head).encode()
    parts = [
        len(text).to_bytes(4, "little"),
        text,
        np.frombuffer(rows, "<u4")[order].tobytes(),
        upper[order].tobytes(),
        *(np.frombuffer(small[column], np.uint8)[order].tobytes() for column in COLUMNS),
        bytes(ops),
        bytes(cases),
    ]
    return {
        "n": n,
        "n_shown": len(order),
        "data": base64.b64encode(gzip.compress(b"".join(parts), 6, mtime=0)).decode(),
    }
