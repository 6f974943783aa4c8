"""The HTML report: its size and rendering beside the run that it shows, and how it loads and filters in a browser.

    python benchmarks/report.py [--cells 1000 5000] [--json PATH]

For each number of cells a real run is made: LayerNorm cases on numpy and on a user's op that is wrong in every second
case, in float32 and float64. Then Chromium opens the report of the run from its file: the time until all of it is laid
out, and, for a search, from the keystroke until the filtered table is painted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from parity.reporting.results.outputs import RENDERERS, Outputs, rendered
from parity.reporting.results.results import read_results

WRONG = """
import numpy as np

def layer_norm(x, weight, bias, normalized_shape, eps):
    ddof = int(x.shape[0] % 2)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=ddof, keepdims=True) + x.dtype.type(eps)) * weight + bias
"""
PER_CASE = 4
"""Two backends in two dtypes."""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    found = []
    for cells in options.cells:
        with tempfile.TemporaryDirectory() as name:
            found.append(measure(Path(name), cells))
        print(", ".join(f"{key} {value:.4g}" for key, value in found[-1].items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(folder: Path, cells: int) -> dict[str, float]:
    """Sizes in kB and times in seconds for a run of that many cells."""
    (folder / "wrong.py").write_text(WRONG)
    rows = [
        f"  - {{id: case-{i}, op: layer_norm, params: {{normalized_shape: [16]}}, inputs: {{x: {{shape: [{4 + i % 8}, 16]}}}}, gradients: false}}"
        for i in range(cells // PER_CASE)
    ]
    backends = "[numpy, {name: mine, adapter: numpy, ops: ./wrong.py}]"
    (folder / "config.yaml").write_text("\n".join(["version: 1", f"backends: {backends}", "cases:", *rows]))
    command = [sys.executable, "-m", "parity", "run", "config.yaml", "--out", "run", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 1:
        sys.exit(f"the run ended with {done.returncode}: {done.stderr}")
    results = read_results(folder / "run")
    figures: dict[str, float] = {"cells": cells, "run_s": results.run.seconds}
    for name in RENDERERS:
        began = time.perf_counter()
        text = rendered(name, results, folder / "run", Outputs({}))
        figures |= {f"{name}_s": time.perf_counter() - began, f"{name}_kB": len(text.encode()) / 1000}
    return figures | in_browser(folder / "run" / "report.html")


def in_browser(report: Path) -> dict[str, float]:
    """Seconds until the report is painted, and from a search's keystroke until the filtered table is."""
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=ARGUMENTS)
        page = browser.new_page()
        page.goto(report.as_uri())
        loaded = page.evaluate(PAINTED)
        times = [searched(page, text) for text in ("case-17", "case-1", "")]
        browser.close()
    return {"load_s": loaded / 1000, "search_s": max(times)}


def searched(page: Page, text: str) -> float:
    """Seconds from setting the search until the table is painted."""
    box: Any = page.locator("input[type=search]").first
    before = page.evaluate("() => performance.now()")
    box.fill(text)
    return float(page.evaluate(PAINTED) - before) / 1000


if __name__ == "__main__":
    main()
