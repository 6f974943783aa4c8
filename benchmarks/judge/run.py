"""How well does the judge judge? Planted faults and clean kernels, in every framework that can host them.

    python benchmarks/judge/run.py [--quick] [--frameworks numpy,torch,paddle,oneflow] [--seed N] [--json PATH]
    python benchmarks/judge/run.py --healthy     right kernels only, many cases
    python benchmarks/judge/run.py --clean       the frameworks' own kernels
    python benchmarks/judge/run.py --check       are the kernels what their labels say?

See benchmarks/judge/README.md for what is counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a script, this folder is on the path in place of the repository.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from benchmarks.judge.command import main

    sys.exit(main())
