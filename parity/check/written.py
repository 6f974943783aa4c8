"""The lines of a file that keep something from one call to the next, found by reading them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

KEEPING = frozenset(("append", "update", "setdefault", "add", "insert", "extend"))
STOPPING = frozenset(("no_grad", "inference_mode", "set_grad_enabled"))
CACHES = frozenset(("cache", "lru_cache"))


def line_that_keeps(path: Path) -> int:
    """The first line outside constructors that writes to an attribute of self or to a global; 0 if there is none."""
    tree = ast.parse(path.read_bytes())
    top = {target for node in tree.body for target in assigned(node)}
    return min((line for function in called(tree) for line in kept(function, top)), default=0)


def opening(path: Path, line: int) -> int:
    """The line of the `with torch.no_grad()` that a line is in; the line itself if it is in none."""
    blocks = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.With)]
    around = [n.lineno for n in blocks if n.lineno <= line <= (n.end_lineno or 0) and any(map(stops, n.items))]
    return max(around, default=line)


LONGEST = 90


def statement(path: Path, line: int) -> str:
    """The statement at a line as it stands, in one line of text, of a block its head; cut to `LONGEST` characters."""
    source = code_of_file(path)
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.stmt)]
    around = [n for n in nodes if n.lineno <= line <= (n.end_lineno or 0)]
    node = max(around, key=lambda n: (n.lineno, -(n.end_lineno or 0)), default=None)
    text = "" if node is None else " ".join(head_of(source, node).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def head_of(source: str, node: ast.stmt) -> str:
    """The code of a statement; of a block, what stands before its first statement."""
    text = ast.get_source_segment(source, node) or ast.unparse(node)
    body = getattr(node, "body", None)
    first = ast.get_source_segment(source, body[0]) if isinstance(body, list) and body else None
    return text.partition(first)[0].partition("#")[0] if first else text


def code_of_file(path: Path) -> str:
    """The text of a file of Python, without the mark that some editors begin it with."""
    return path.read_text(encoding="utf-8-sig")


def stops(item: ast.withitem) -> bool:
    """Whether a context ends gradients."""
    words = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(item.context_expr)}
    return bool(words & STOPPING)


def assigned(node: ast.stmt) -> Iterator[str]:
    """The names to which a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def called(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions and methods of a file but for constructors."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name != "__init__")


def kept(function: ast.FunctionDef, top: set[str]) -> Iterator[int]:
    """The lines of a function that write to what stays."""
    for decorator in function.decorator_list:
        if {n.id if isinstance(n, ast.Name) else getattr(n, "attr", "") for n in ast.walk(decorator)} & CACHES:
            yield decorator.lineno
    names = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(stays(target, top, names) for target in targets):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            word = node.func.attr
            written = word in KEEPING or (word.endswith("_") and not word.endswith("__"))
            if written and stays(node.func.value, top, set(), part=True):
                yield node.lineno


def stays(target: ast.expr, top: set[str], names: set[str], *, part: bool = False) -> bool:
    """Whether a target is an attribute of self or of a class, or (a part of) a global."""
    if isinstance(target, ast.Tuple | ast.List):
        return any(stays(item, top, names) for item in target.elts)
    inner = target
    while isinstance(inner, ast.Subscript | ast.Attribute | ast.Starred):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return False
    if inner is target:
        return inner.id in names or (part and inner.id in top)
    return inner.id in (*top, *names, "self", "cls")
