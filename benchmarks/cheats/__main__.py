"""All pairs under all rules, and under `parity check` where it exists: a table of what is caught and what passes.

python -m benchmarks.cheats
python -m benchmarks.cheats --rules parity --json parity.jsonl
python -m benchmarks.cheats --read others.jsonl parity.jsonl --out table.md
python -m benchmarks.cheats --kinds cheats,mistakes --pairs softmax --rules "KernelBench,GPU MODE" --out table.md --json rows.jsonl
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.cheats.check import PARITY, exists
from benchmarks.cheats.listing import KINDS, Pair, pairs
from benchmarks.cheats.report import Row, facts, merged, tables
from benchmarks.cheats.rules import RULES
from benchmarks.cheats.score import scored


def main() -> int:
    options = arguments()
    if options.read:
        rows = merged([Row.read(line) for path in options.read for line in path.read_text().splitlines()])
    else:
        with tempfile.TemporaryDirectory() as name:
            listed = [pair for kind in options.kinds for pair in pairs(kind, Path(name))]
            rows = measured([pair for pair in listed if fits(pair, options)], options)
    text = tables(rows, [rule for rule in options.rules if all(rule in row.cells for row in rows)], facts())
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def measured(chosen: list[Pair], options: argparse.Namespace) -> list[Row]:
    """All rows, each also a line of the JSON as soon as it is measured."""
    rows = []
    if options.json:
        options.json.write_text("")
    for count, pair in enumerate(chosen, 1):
        rows.append(scored(pair, options.rules, options.seconds))
        if options.json:
            with options.json.open("a") as file:
                file.write(rows[-1].line() + "\n")
        progress(f"{count} of {len(chosen)}: {pair.name}")
    progress("")
    return rows


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:80.80}\r", end="", file=sys.stderr, flush=True)


def fits(pair: Pair, options: argparse.Namespace) -> bool:
    words: list[str] = options.pairs
    named = not words or any(word in pair.name for word in words)
    return named and not (options.written and pair.generated)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: [word for word in text.split(",") if word]  # noqa: E731 - a type of arguments
    parser.add_argument("--kinds", type=listed, default=list(KINDS), help=",".join(KINDS))
    parser.add_argument("--pairs", type=listed, default=[], help="words, of which a pair's name contains one")
    parser.add_argument("--rules", type=listed, default=None, help=",".join([*RULES, PARITY]))
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="the most time that a rule, or parity, has for a pair"
    )
    parser.add_argument(
        "--written", action="store_true", help="right candidates as they were written, without wrappers"
    )
    parser.add_argument(
        "--read", type=Path, nargs="+", default=[], metavar="JSONL", help="rows of earlier runs: nothing is run"
    )
    parser.add_argument("--out", type=Path, help="the Markdown, as a file")
    parser.add_argument("--json", type=Path, help="a line for each pair")
    options = parser.parse_args()
    if options.rules is None:
        options.rules = [*RULES, *([PARITY] if options.read or exists() else [])]
    if unknown := [*(set(options.kinds) - set(KINDS)), *(set(options.rules) - {*RULES, PARITY})]:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
