"""Whether an adapter's op is one call of its framework, or a composition of several, read from its source.

An abstract interpreter of the adapters' Python: a value is an option, a tensor as the op got it, or one that a call of
the framework has computed. What calls the framework with a computed tensor, or has an operator on a tensor, composes.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

from parity.adapters import adapter_class
from parity.cases import OPS
from parity.repro.source import ModuleSource, methods_of, of_parity, own_attribute, source_of

EXACT = frozenset(
    (
        # Layout.
        "reshape", "view", "transpose", "t", "swapaxes", "squeeze", "unsqueeze", "expand_dims", "flatten", "stack",
        "concat", "concatenate", "cat", "split",
        "meshgrid", "indices", "copy", "clone",
        # Selection by a mask, and zeros around or behind, which no gradient adds up.
        "where", "masked_fill", "Pad", "pad",
        # Other types of the same numbers.
        "cast", "astype", "bool", "type_as", "one_hot", "asarray", "array", "tensor", "to_tensor",
        "convert_to_tensor", "constant", "to", "detach", "any",
        # Numbers that follow from options.
        "arange", "range", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "tril",
        "empty",
        # What containers and modules hold.
        "items", "values", "keys", "state_dict", "load_state_dict", "set_state_dict", "set_data", "assign", "build",
        # An optimizer's states before its step, and a step's second half: Optax returns what is to be added.
        "init", "tree_get", "tree_set", "apply_updates",
    )
)  # fmt: skip
"""Functions and methods that round nothing, forwards and backwards, and are not the op itself."""

CREATES = frozenset(["arange", "range", "zeros", "ones", "full", "outer", "tensor"])
"""Functions that make a tensor of options."""

TRAITS = frozenset(["shape", "ndim", "dtype", "device", "itemsize", "size"])
"""What a tensor has that is no tensor."""

ONE_CALL = frozenset({"node"})
"""Methods of adapters that are one call: an ONNX operator."""

CONVERSIONS = frozenset({"leaf", "to_numpy"})
"""Methods of adapters that take a tensor to the framework and back."""

COUNTS = frozenset(["len", "isinstance", "hasattr", "int", "float", "str", "type", "bool", "range", "min", "max"])
"""Built-in functions whose result is no tensor."""

DEPTH = 40


class Kind(IntEnum):
    """What an abstract value may be."""

    OPTION = 0
    TENSOR = 1
    COMPUTED = 2


class Unknown:
    """The value of an option that is not known."""


@dataclass(frozen=True)
class Value:
    """An abstract value; `known` is an option's value, `items` are a mapping's, `function` is called with `scope`."""

    kind: Kind = Kind.OPTION
    known: Any = Unknown
    items: Mapping[str, Value] | None = None
    function: ast.FunctionDef | ast.Lambda | None = None
    place: Place | None = None
    scope: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a function is: its module, and how many of the adapter's classes come before its own."""

    source: ModuleSource
    depth: int = 0


OPTION, TENSOR, COMPUTED = Value(Kind.OPTION), Value(Kind.TENSOR), Value(Kind.COMPUTED)
NONE = Value(known=None)


def joined(values: Iterable[Value]) -> Value:
    """One of these values, or all of them in a container."""
    return Value(max((value.kind for value in values), default=Kind.OPTION))


def either(one: Value, other: Value) -> Value:
    """One of two values."""
    return one if one == other else joined([one, other])


def truth(value: Value) -> bool | None:
    """Whether a condition holds, None if that is not known."""
    return None if value.known is Unknown else bool(value.known)


@dataclass
class Block:
    """A function that is being read: its names, and what it returns."""

    place: Place
    scope: dict[str, Value]
    returned: list[Value] = field(default_factory=list)


def compositions(adapter: str, op: str, given: Mapping[str, Any]) -> list[str]:
    """Where an adapter's method for an op composes calls, by line, if its arguments in `given` have these values."""
    reading = Reading(adapter_class(adapter).__mro__[:-1])
    definition = OPS[op.removeprefix("stored_")]
    tensors = {item.name for item in definition.inputs}
    names = [*tensors, *(param.name for param in fields(definition.params))]
    arguments = {name: TENSOR if name in tensors else OPTION for name in names}
    reading.own(op, {**arguments, **{name: Value(known=value) for name, value in given.items()}}, 0)
    return list(dict.fromkeys(reading.found))


@dataclass
class Reading:
    """The walk through an op's method and those that it calls."""

    bases: Sequence[type[Any]]
    found: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)

    def own(self, name: str, arguments: Mapping[str, Value], first: int, positional: Sequence[Value] = ()) -> Value:
        """A call of the adapter's method of that name, from its class number `first` on."""
        for depth, cls in enumerate(self.bases[first:], first):
            node = methods_of(cls).get(name)
            if node is not None:
                return self.called(node, Place(source_of(cls.__module__), depth), positional, arguments, {})
        return OPTION

    def called(
        self,
        node: ast.FunctionDef | ast.Lambda,
        place: Place,
        positional: Sequence[Value],
        named: Mapping[str, Value],
        scope: Mapping[str, Value],
    ) -> Value:
        """What a function returns for these arguments."""
        name = getattr(node, "name", "lambda")
        if self.running.count(name) > 1 or len(self.running) > DEPTH:
            return self.computed(joined([*positional, *named.values()]), node, place)
        block = Block(place, {**scope, **bound(node, positional, named)})
        self.running.append(name)
        if isinstance(node, ast.Lambda):
            block.returned.append(self.expression(node.body, block))
        else:
            self.statements(node.body, block)
        self.running.pop()
        return replace(block.returned[0]) if len(block.returned) == 1 else joined(block.returned)

    def compose(self, node: ast.AST, place: Place) -> Value:
        """Note a composition."""
        self.found.append(f"{place.source.name}:{getattr(node, 'lineno', 0)}")
        return COMPUTED

    def computed(self, given: Value, node: ast.AST, place: Place) -> Value:
        """The result of a call of the framework that computes numbers."""
        if given.kind is Kind.COMPUTED:
            return self.compose(node, place)
        return COMPUTED if given.kind is Kind.TENSOR else OPTION

    # Statements

    def statements(self, nodes: Sequence[ast.stmt], block: Block) -> bool:
        """Read statements in order; whether they end in a return or an error."""
        return any(self.statement(node, block) for node in nodes)

    def statement(self, node: ast.stmt, block: Block) -> bool:  # noqa: C901 - a table of nodes
        """Read a statement; whether it ends the function."""
        match node:
            case ast.Return(value=value):
                block.returned.append(NONE if value is None else self.expression(value, block))
                return True
            case ast.Raise():
                return True
            case ast.Assign(targets=targets, value=value):
                result = self.expression(value, block)
                for target in targets:
                    self.assign(target, result, block)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, self.expression(value, block), block)
            case ast.AugAssign(target=target, value=value):
                both = joined([self.expression(value, block), self.expression(loaded(target), block)])
                self.assign(target, self.operated(both, node, block), block)
            case ast.Expr(value=value):
                self.expression(value, block)
            case ast.If(test=test, body=body, orelse=orelse):
                return self.branches(self.expression(test, block), body, orelse, block)
            case ast.For(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=turns), body=body):
                for turn in turns:
                    for target, part in zip(targets, getattr(turn, "elts", ()), strict=True):
                        self.assign(target, self.expression(part, block), block)
                    self.statements(body, block)
            case ast.For(target=target, iter=items, body=body):
                self.assign(target, joined([self.expression(items, block)]), block)
                self.statements([*body, *body], block)
            case ast.With(body=body):
                return self.statements(body, block)
            case ast.Try(body=body, handlers=handlers):
                ended = self.statements(body, block)
                for handler in handlers:
                    self.statements(handler.body, block)
                return ended
            case ast.FunctionDef(name=name):
                block.scope[name] = Value(function=node, place=block.place, scope=block.scope)
            case ast.Import() | ast.ImportFrom() | ast.Delete() | ast.Pass():
                pass
            case _:
                raise NotImplementedError(f"{block.place.source.name}:{node.lineno}: {type(node).__name__}")
        return False

    def branches(self, test: Value, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], block: Block) -> bool:
        """Read the branch that is taken, or both."""
        holds = truth(test)
        if holds is not None:
            return self.statements(body if holds else orelse, block)
        other = replace(block, scope=dict(block.scope))
        ended, other_ended = self.statements(body, block), self.statements(orelse, other)
        if ended:
            block.scope.update(other.scope)
        elif not other_ended:
            for name in block.scope.keys() & other.scope.keys():
                block.scope[name] = either(block.scope[name], other.scope[name])
        return ended and other_ended

    def assign(self, target: ast.expr, value: Value, block: Block) -> None:
        """Bind names to a value, or put it into what a name has."""
        match target:
            case ast.Name(id=name):
                block.scope[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for part in targets:
                    self.assign(part, joined([value]), block)
            case ast.Starred(value=inner):
                self.assign(inner, value, block)
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                self.put(owner, value, block)

    def put(self, owner: ast.expr, value: Value, block: Block) -> None:
        """Put tensors into the object that an expression begins with."""
        while isinstance(owner, ast.Attribute | ast.Subscript | ast.Call):
            owner = owner.func if isinstance(owner, ast.Call) else owner.value
        if isinstance(owner, ast.Name) and owner.id in block.scope and value.kind > Kind.OPTION:
            had = block.scope[owner.id]
            block.scope[owner.id] = replace(had, kind=max(had.kind, value.kind), known=Unknown)

    # Expressions

    def expression(self, node: ast.expr, block: Block) -> Value:  # noqa: C901 - a table of nodes
        """The value of an expression."""
        match node:
            case ast.Constant(value=value):
                return Value(known=value)
            case ast.Name(id=name):
                return block.scope.get(name) or module_value(name, block.place.source)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(node, self.expression(owner, block), name)
            case ast.Call():
                return self.call(node, block)
            case ast.BinOp(left=left, right=right):
                return self.operated(joined([self.expression(left, block), self.expression(right, block)]), node, block)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                holds = truth(self.expression(operand, block))
                return OPTION if holds is None else Value(known=not holds)
            case ast.UnaryOp(operand=operand):
                return joined([self.expression(operand, block)])  # A sign rounds nothing.
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return compared(operator, self.expression(left, block), self.expression(right, block))
            case ast.BoolOp(op=operator, values=values):
                return self.both(isinstance(operator, ast.And), [self.expression(value, block) for value in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                holds = truth(self.expression(test, block))
                wanted = [body, orelse] if holds is None else [body if holds else orelse]
                values = [self.expression(part, block) for part in wanted]
                return values[0] if len(values) == 1 else either(*values)
            case ast.Subscript(value=owner, slice=index):
                held, key = self.expression(owner, block), self.expression(index, block)
                if held.items is not None and isinstance(key.known, str) and key.known in held.items:
                    return held.items[key.known]
                return joined([held, key])
            case ast.Lambda():
                return Value(function=node, place=block.place, scope=block.scope)
            case ast.Dict(keys=keys, values=values):
                return self.mapping(keys, values, block)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
                return self.comprehension(node, [element], block)
            case ast.DictComp(key=key, value=value):
                return self.comprehension(node, [key, value], block)
            case ast.JoinedStr():
                return OPTION
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return joined([self.expression(part, block) for part in parts])

    def operated(self, given: Value, node: ast.AST, block: Block) -> Value:
        """The result of an operator."""
        return OPTION if given.kind is Kind.OPTION else self.compose(node, block.place)

    @staticmethod
    def attribute(node: ast.Attribute, owner: Value, name: str) -> Value:
        """An attribute: of `self` an option or a method, of a tensor another tensor or a trait."""
        if own_attribute(node):
            return OPTION
        return OPTION if name in TRAITS else joined([owner])

    @staticmethod
    def both(every: bool, values: Sequence[Value]) -> Value:
        """`and` or `or` of values."""
        known = [truth(value) for value in values]
        if (not every) in known:
            return Value(known=not every)
        return Value(known=every) if all(value is every for value in known) else joined(values)

    def mapping(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr], block: Block) -> Value:
        """A dict, with its items if all are known."""
        items: dict[str, Value] = {}
        read = [
            (None if key is None else self.expression(key, block), self.expression(v, block))
            for key, v in zip(keys, values, strict=True)
        ]
        for key, value in read:
            if key is None and value.items is not None:
                items.update(value.items)
            elif key is not None and isinstance(key.known, str):
                items[key.known] = value
            else:
                return joined(value for _, value in read)
        return Value(joined(items.values()).kind, items=items)

    def comprehension(self, node: Any, elements: Sequence[ast.expr], block: Block) -> Value:
        """A comprehension: its elements for one turn."""
        inner = replace(block, scope=dict(block.scope))
        for generator in node.generators:
            self.assign(generator.target, joined([self.expression(generator.iter, inner)]), inner)
        return joined([self.expression(element, inner) for element in elements])

    # Calls

    def call(self, node: ast.Call, block: Block) -> Value:
        """The result of a call."""
        positional, named = self.arguments(node, block)
        function = node.func
        if method := own_attribute(function):
            if method in ONE_CALL:
                return self.computed(joined([*positional, *named.values()]), node, block.place)
            if method in CONVERSIONS:
                return joined(positional)
            if any(method in methods_of(cls) for cls in self.bases):
                return self.own(method, named, 0, positional)
        match function:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                return self.own(name, named, block.place.depth + 1, positional)
            case ast.Name(id=name) if name not in block.scope and hasattr(builtins, name):
                return self.built_in(name, node, positional, block)
        value = self.expression(function, block)
        if value.function is not None and value.place is not None:
            return self.called(value.function, value.place, positional, named, value.scope)
        return self.of_framework(node, value, joined([*positional, *named.values()]), block)

    def arguments(self, node: ast.Call, block: Block) -> tuple[list[Value], dict[str, Value]]:
        """A call's positional and named arguments."""
        positional = [self.expression(part, block) for part in node.args]
        named: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.expression(keyword.value, block)
            if keyword.arg is not None:
                named[keyword.arg] = value
            else:
                named.update(value.items if value.items is not None else {"**": value})
        return positional, named

    def built_in(self, name: str, node: ast.Call, positional: Sequence[Value], block: Block) -> Value:
        """A call of one of Python's functions."""
        if name in COUNTS:
            return OPTION
        if name == "setattr":
            self.put(node.args[0], joined(positional[2:]), block)
        if name == "map":
            return self.call(ast.copy_location(ast.Call(node.args[0], node.args[1:], []), node), block)
        if name == "sum":
            return self.operated(joined(positional), node, block)
        return joined(positional)

    def of_framework(self, node: ast.Call, function: Value, given: Value, block: Block) -> Value:
        """A call of a function, a method or an object of the framework, or a method of a container."""
        name = name_of(node.func.func if isinstance(node.func, ast.Call) else node.func)
        if isinstance(node.func, ast.Attribute):
            owner = self.expression(node.func.value, block)
            if name in ("pop", "get") and owner.kind >= function.kind:
                return item(owner, node, given)
            self.put(node.func.value, Value(min(given.kind, Kind.TENSOR)), block)
        both = joined([function, given])
        if name in CREATES and both.kind is Kind.OPTION:
            return TENSOR
        if name in EXACT or is_class(node.func):
            return both
        return self.computed(both, node, block.place)


def item(owner: Value, node: ast.Call, given: Value) -> Value:
    """What `pop` or `get` of a mapping returns."""
    key = node.args[0]
    if owner.items is not None and isinstance(key, ast.Constant):
        return owner.items.get(key.value, given)
    return joined([owner, given])


def name_of(function: ast.expr) -> str:
    """The last name of what is called; of a chosen attribute none."""
    return str(getattr(function, "attr", "") or getattr(function, "id", ""))


def is_class(function: ast.expr) -> bool:
    """Whether a call makes an object: of a class, or of one of a module of optimizers."""
    name = name_of(function)
    chosen = isinstance(function, ast.Call) and ast.unparse(function.func) == "getattr"
    return name[:1].isupper() or (
        chosen and any(f".{part}," in ast.unparse(function) for part in ("optim", "optimizer", "nn", "layers"))
    )


def compared(operator: ast.cmpop, left: Value, right: Value) -> Value:
    """A comparison: of options its value if that is known, of tensors a mask."""
    if isinstance(operator, ast.Is | ast.IsNot) and right.known is None:
        if left.known is Unknown and left.kind is Kind.OPTION:
            return OPTION
        return Value(known=(left.known is None) == isinstance(operator, ast.Is))
    if isinstance(operator, ast.In | ast.NotIn):
        return OPTION
    if Unknown in (left.known, right.known):
        return joined([left, right])
    tests = {ast.Eq: left.known == right.known, ast.NotEq: left.known != right.known}
    return Value(known=tests[type(operator)]) if type(operator) in tests else OPTION


def bound(
    node: ast.FunctionDef | ast.Lambda, positional: Sequence[Value], named: Mapping[str, Value]
) -> dict[str, Value]:
    """The arguments of a function by name, defaults included."""
    given = node.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args) if arg.arg != "self"]
    rest = joined(positional[len(names) :])
    spread = named.get("**", OPTION)
    defaults = dict(zip(reversed(names), reversed(given.defaults), strict=False))
    defaults |= {arg.arg: value for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
    scope = {name: constant(value) for name, value in defaults.items()}
    scope |= {name: spread for name in names if name not in scope}
    scope |= dict(zip(names, positional, strict=False))
    explicit = {*names, *(arg.arg for arg in given.kwonlyargs)}
    scope |= {name: value for name, value in named.items() if name in explicit}
    if given.vararg:
        scope[given.vararg.arg] = rest
    if given.kwarg:
        items = {name: value for name, value in named.items() if name not in explicit}
        scope[given.kwarg.arg] = Value(joined(items.values()).kind, items=None if "**" in items else items)
    return scope


def constant(node: ast.expr) -> Value:
    """The value of a default."""
    return Value(known=node.value) if isinstance(node, ast.Constant) else OPTION


def loaded(target: ast.expr) -> ast.expr:
    """A target of an assignment, as an expression."""
    return ast.parse(ast.unparse(target), mode="eval").body


def module_value(name: str, source: ModuleSource) -> Value:
    """A name of a module: a function of parity that may be read, or an option."""
    node = source.definitions.get(name)
    if isinstance(node, ast.ImportFrom) and of_parity(node):
        return module_value(name, source_of(str(node.module)))
    if isinstance(node, ast.FunctionDef):
        return Value(function=node, place=Place(source))
    return OPTION


def implemented(adapter: str) -> Iterator[str]:
    """The methods of an adapter that compute an op."""
    cls = adapter_class(adapter)
    return (name for op in OPS for name in (op, f"stored_{op}") if getattr(cls, name, None) is not None)
