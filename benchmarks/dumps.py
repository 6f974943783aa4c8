"""`parity compare` of two dumps against a loop of `numpy.testing.assert_allclose` over the same files.

    python benchmarks/dumps.py [--megabytes 500] [--repeats 5]

Two folders of .npy files, float32: all tensors are equal; every element is an ulp off, up or down; one element of each
tensor is wrong besides; every element is off by more than the tolerance (then all metrics are needed, and
`assert_allclose` raises, and the loop goes on).
Each contender is a process of its own; they take turns. Seconds are processor time, which others on the machine do not
share: of the comparison, from opening the dumps to the stored results, and of the whole process. Memory is the largest `RssAnon` of the process, so without the pages of mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIDE = 2048
"""Rows and columns of a tensor: 16 MiB."""
RTOL, ATOL = 1.3e-6, 1e-5
GOAL, MOST_MEMORY = 5, 200
NUMPY = "assert_allclose"
CONTENDERS = (NUMPY, "parity")
PASS_MS = 5


def main() -> None:
    options = arguments()
    if options.child:
        print(json.dumps(child(options.child, Path(options.left), Path(options.right))))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
          f"Python {platform.python_version()}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        n = max(1, round(options.megabytes * 1e6 / (4 * SIDE * SIDE)))
        for what in options.only or RIGHT:
            write(Path(folder), what, n)
            report(what, measured(Path(folder) / "left", Path(folder) / "right", options.repeats))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=500, help="of each dump")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", action="append", choices=RIGHT, help="what the right dump is (repeatable)")
    for name in ("child", "left", "right"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    return parser.parse_args()


def write(folder: Path, what: str, n: int) -> None:
    """The dumps: normal numbers, and what the right one is."""
    import numpy as np

    for name in ("left", "right"):
        (folder / name).mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for i in range(n):
        values = generator.normal(size=(SIDE, SIDE)).astype(np.float32)
        np.save(folder / "left" / f"layer{i}.npy", values)
        np.save(folder / "right" / f"layer{i}.npy", RIGHT[what](values, generator))


def rounded(values: Any, generator: Any) -> Any:
    """Every element is the next number, above or below."""
    import numpy as np

    return np.nextafter(values, np.where(generator.random(values.shape) < 0.5, np.inf, -np.inf).astype(np.float32))


def one_wrong(values: Any, generator: Any) -> Any:
    """One element differs by more than rounding."""
    near = rounded(values, generator)
    near[tuple(generator.integers(SIDE, size=2))] += 1
    return near


def drifted(values: Any, generator: Any) -> Any:
    """Every element differs by more than the tolerance."""
    import numpy as np

    return values + (1e-4 * generator.normal(size=values.shape)).astype(np.float32)


RIGHT: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda values, _: values,
    "rounded": rounded,
    "one wrong": one_wrong,
    "drifted": drifted,
}
"""What the right dump has for the values of the left one."""


def child(contender: str, left: Path, right: Path) -> dict[str, float]:
    """The processor time and the wall time of the comparison alone."""
    compare = by_numpy if contender == NUMPY else prepared()
    cpu, wall = time.process_time(), time.perf_counter()
    compare(left, right)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def by_numpy(left: Path, right: Path) -> None:
    import numpy as np

    for path in sorted(left.iterdir()):
        try:
            np.testing.assert_allclose(np.load(path), np.load(right / path.name), rtol=RTOL, atol=ATOL)
        except AssertionError as error:
            assert "Not equal to tolerance" in str(error)


def prepared() -> Any:
    """parity's comparison, imported."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from parity.dumps.dump import open_dump
    from parity.dumps.session import CompareOptions, Session, prepared

    def compare(left: Path, right: Path) -> None:
        dumps = open_dump(left), open_dump(right)
        asking = CompareOptions()
        with tempfile.TemporaryDirectory() as folder:
            results = Session(prepared(*dumps, None, asking), asking, Path(folder), []).run()
        assert len(results.comparisons) == len(dumps[0].tensors)

    return compare


def measured(left: Path, right: Path, repeats: int) -> dict[str, dict[str, list[float]]]:
    """What each contender took, round by round; the first round, which fills the page cache, is left out."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in CONTENDERS}
    for number in range(repeats + 1):
        for name in CONTENDERS:
            took = started(name, left, right)
            for key, value in took.items() if number else ():
                found[name].setdefault(key, []).append(value)
    return found


def started(contender: str, left: Path, right: Path) -> dict[str, float]:
    """A contender in a process of its own, with the whole process's time and memory."""
    command = [sys.executable, __file__, "--child", contender, "--left", str(left), "--right", str(right)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, peak = sum(os.times()[2:4]), 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, anonymous(process.pid))
            time.sleep(PASS_MS / 1000)
        assert process.stdout is not None
        answer: dict[str, float] = json.loads(process.stdout.read())
    return {**answer, "process": sum(os.times()[2:4]) - before, "memory": peak / 1024}


def anonymous(pid: int) -> int:
    """KiB of a process's memory that are no pages of files."""
    try:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def report(what: str, found: dict[str, dict[str, list[float]]]) -> None:
    """A line for each contender, with ratios of medians."""
    print(f"\n{what}")
    middle = {name: {key: statistics.median(values) for key, values in keys.items()} for name, keys in found.items()}
    base = middle[NUMPY]
    for name, m in middle.items():
        times, process = base["cpu"] / m["cpu"], base["process"] / m["process"]
        goal = "" if name == NUMPY else f"{'met' if times >= GOAL and m['memory'] <= MOST_MEMORY else 'missed'}"
        print(f"  {name:21} {m['cpu']:6.2f} s ({times:4.1f} times as fast; wall {m['wall']:5.2f} s)  process "
              f"{m['process']:5.2f} s ({process:3.1f})  {max(found[name]['memory']):4.0f} MiB  {goal}")  # fmt: skip


if __name__ == "__main__":
    main()
