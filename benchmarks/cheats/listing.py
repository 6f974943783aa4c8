"""The pairs: cheats, ways around the work that are numerically right, honest mistakes, and right candidates.

A cheat, a bypass or a mistake is a folder of `pairs/` with `reference.py` and `new.py`. Right candidates are forms: the files
beside `pairs/right/PROBLEM/reference.py`, each once as it is and once in each wrapper that suits its problem.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PAIRS = Path(__file__).parent / "pairs"
KINDS = ("cheats", "bypasses", "mistakes", "right")


@dataclass(frozen=True)
class Pair:
    """A reference, a candidate, and what the candidate is."""

    kind: str
    name: str
    reference: Path
    new: Path
    generated: bool = False

    @property
    def says(self) -> str:
        """The first line of the candidate's docstring."""
        return (ast.get_docstring(ast.parse(self.new.read_text())) or "").partition("\n")[0]


def pairs(kind: str, generated: Path) -> list[Pair]:
    """All pairs of a kind; candidates that are generated are written to `generated`."""
    if kind == "right":
        return [pair for folder in _folders(kind) for pair in _right(folder, generated)]
    return [Pair(kind, folder.name, folder / "reference.py", folder / "new.py") for folder in _folders(kind)]


def _folders(kind: str) -> list[Path]:
    return sorted(folder for folder in (PAIRS / kind).iterdir() if (folder / "reference.py").is_file())


def _right(folder: Path, generated: Path) -> Iterator[Pair]:
    reference = folder / "reference.py"
    unfit = _unfit(ast.get_docstring(ast.parse(reference.read_text())) or "")
    for form in sorted(folder.glob("*.py")):
        if form == reference:
            continue
        yield Pair("right", f"{folder.name}/{form.stem}", reference, form)
        for wrapper, body in WRAPPERS.items():
            if wrapper in unfit:
                continue
            name = f"{folder.name}/{form.stem}-{wrapper}"
            path = generated / f"{name.replace('/', '-')}.py"
            path.write_text(_with_torch(form.read_text()).replace("class ModelNew(", "class Inner(") + body)
            yield Pair("right", name, reference, path, generated=True)


def _with_torch(source: str) -> str:
    """A form that imports torch, as wrappers need it."""
    return source if "\nimport torch\n" in source else source.replace("\nfrom torch", "\nimport torch\nfrom torch", 1)


def _unfit(docstring: str) -> frozenset[str]:
    """Wrappers that change what a problem computes."""
    if "with state" in docstring:
        return frozenset({"float64", "rows", "again"})
    by_row = any(words in docstring for words in ("row by row", "example by example"))
    return frozenset() if by_row else frozenset({"rows"})


_WRAPPER = """

class ModelNew(Inner):
    def forward(self, *inputs):
"""

WRAPPERS: Mapping[str, str] = {
    # All floats in float64, and the result as it should be.
    "float64": f"""{_WRAPPER}        dtype = next(x.dtype for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point())
        if dtype == torch.float64:
            return super().forward(*inputs)
        wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        weights = {{name: weight.double() for name, weight in self.named_parameters()}}
        return torch.func.functional_call(self, weights, tuple(wide)).to(dtype)
""",
    # A tensor made beforehand, and filled.
    "filled": f"""{_WRAPPER}        result = super().forward(*inputs)
        made = torch.full_like(result, float("nan"))
        made.copy_(result)
        return made
""",
    # A result whose rows are not contiguous.
    "strided": f"""{_WRAPPER}        result = super().forward(*inputs)
        return torch.stack([result, result], -1)[..., 0]
""",
    # The first input in another memory layout.
    "laid-out": f"""{_WRAPPER}        first = inputs[0]
        if first.ndim > 1:
            first = first.transpose(0, -1).contiguous().transpose(0, -1)
        return super().forward(first, *inputs[1:])
""",
    # Three rows at a time.
    "rows": f"""{_WRAPPER}        parts = [super(ModelNew, self).forward(part, *inputs[1:]) for part in inputs[0].split(3)]
        return torch.cat(parts)
""",
    # The gradient by computing the forward pass again.
    "again": f"""{_WRAPPER}        return torch.utils.checkpoint.checkpoint(super().forward, *inputs, use_reentrant=False)
""",
}
