"""A user's PyTorch class or function, called with tensors by name: weights and arguments are tensors alike.

It runs where the class runs: in a worker for a candidate, in the host for a reference that is recorded.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

INIT = "init_"
"""The prefix of a constructor's arguments among the params of a case; they are passed in their order."""
TRAINING = "training"
NO_GRAD = "no_grad"
"""The param of a call without gradients, as in inference, which code can ask for."""
ARGUMENTS = "arguments"
"""The param with the arguments of `forward` in their order, as in `x, mask: bool, alpha`."""
COMPLEX = "complex"
"""How the dtypes of complex numbers begin, in `arguments`: their parts are given, in one further axis."""
STATE = "state_buffers"
"""The param with the names of further buffers that a call changes, as in `u, ema`: they are given, and left, too."""
KEPT = "_parity_kept"
"""The attribute of a module with the names of these buffers."""
RUNNING = "running_"
"""How the names of buffers begin that a layer changes when it is called in training mode."""
AFTER = "after_"
"""The prefix of outputs that are what a call has left in a buffer."""
NEW = "New"
"""KernelBench's suffix of a candidate's class."""
DRAWS = ("rand", "randn", "rand_like", "randn_like")
"""Functions of PyTorch that draw numbers."""
SEED = FIRST_SEED = 0
"""The seed before each call, and that before each constructor."""
MODULE = "torch.nn.modules.module"
PLAIN_WORDS = re.compile(r"proj(ection)?|linear|layer|^w(?=[a-z]$)|_")
"""What the names of layers have besides what tells them apart."""


class UserModuleError(ValueError):
    """The class or function cannot be called like this; the message says why."""


def entry_of(namespace: Mapping[str, Any], name: str) -> Any:
    """What a file defines under a name: a candidate's class `<name>New`, else `name`; None if there is neither."""
    new = namespace.get(name + NEW)
    return new if is_module_class(new) else namespace.get(name)


def is_module_class(value: Any) -> bool:
    """Whether a value is a class of PyTorch's modules."""
    return isinstance(value, type) and any(kind.__module__ == MODULE for kind in value.__mro__)


class UserModule:
    """A user's class or function as a function of tensors and params by keyword; `module` builds the instance once for
    each set of constructor's arguments."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.modules: Dict[str, Any] = {}

    def __call__(self, **given: Any) -> Dict[str, Any]:
        """The outputs by name. Raises UserModuleError, or what the user's code raises."""
        import torch

        spec = given.pop(ARGUMENTS, None)
        training, no_grad = given.pop(TRAINING, None), given.pop(NO_GRAD, False)
        kept = {name: given.pop(name) for name in given.pop(STATE, "").split(", ") if name}
        init = [decoded(given.pop(name)) for name in list(given) if name.startswith(INIT)]
        dtype = next((v.dtype for v in given.values() if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
        with contextlib.ExitStack() as stack, default_dtype(dtype), steady_draws():
            if no_grad:
                stack.enter_context(torch.no_grad())
            if not is_module_class(self.entry):
                function = self.entry
            else:
                function = self.module(init, dtype)
                if training is not None:
                    stack.enter_context(mode(function, bool(training)))
                given = {**given, **having(function, kept)}
                names = state_names(function, spec, given)
                put(function, {own: given.pop(name) for name, own in names.items()})
            seed(torch)
            outputs = outputs_of(function(*arguments_of(spec, given)))
            return {**{name: in_parts(value) for name, value in outputs.items()}, **statistics_after(function)}

    def state(self) -> Dict[str, str]:
        """The names of the state by the names of inputs, as `state_of`, once the class is built; none of a function."""
        return next(map(state_of, self.modules.values()), {})

    def module(self, init: Sequence[Any], dtype: Any = None) -> Any:
        """The instance of the class for a constructor's arguments, built after the seed."""
        key = repr((init, dtype))
        if key not in self.modules:
            self.modules[key] = built(self.entry, init)
            if dtype is not None:
                self.modules[key].to(dtype)
        return self.modules[key]


@contextlib.contextmanager
def mode(module: Any, training: bool) -> Iterator[None]:
    """Inside, a module and all within it are in training mode, or in evaluation mode; later calls find their own."""
    before = [(part, part.training) for part in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for part, own in before:
            part.training = own


def built(entry: Any, init: Sequence[Any]) -> Any:
    """A new instance of the class, built after the first seed."""
    import torch

    seed(torch, FIRST_SEED)
    named = init[-1] if len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], dict) else None
    return entry(*init) if named is None else entry(*init[0], **named)


def seed(torch: Any, number: Optional[int] = None) -> None:
    """Seed PyTorch's generators, without `torch.manual_seed`, whose first call imports its compiler (four seconds)."""
    number = SEED if number is None else number
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """Inside, tensors are created in this dtype; in the usual one for formats of 16 bits."""
    import torch

    before = torch.get_default_dtype()
    if dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def steady_draws() -> Iterator[None]:
    """Inside, `torch.randn` and `torch.rand` give the same numbers in every dtype and on every device: an initial state
    that the code draws is the same for a reference and a candidate."""
    import torch

    own = {name: getattr(torch, name) for name in DRAWS}

    def steady(name: str) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("generator") is not None or kwargs.get("out") is not None:
                return own[name](*args, **kwargs)
            like = torch.empty(0)
            if name.endswith("_like"):
                like, args = args[0], (tuple(args[0].shape),)
            dtype, device = kwargs.get("dtype") or like.dtype, kwargs.get("device") or like.device
            with torch._C.DisableTorchFunction():
                sizes = args or (kwargs["size"],)
                drawn = own[name.partition("_")[0]](*sizes, dtype=torch.float32, device="cpu")
                return drawn.to(device, dtype).requires_grad_(kwargs.get("requires_grad", False))

        return draw

    for name in DRAWS:
        setattr(torch, name, steady(name))
    try:
        yield
    finally:
        for name in DRAWS:
            setattr(torch, name, own[name])


def decoded(value: Any) -> Any:
    """A constructor's argument; lists, mappings and None are written as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{", "n", '"'):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def encoded(value: Any) -> Any:
    """A constructor's argument as a value of a config."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value if decoded(value) == value else json.dumps(value)
    return json.dumps(value)


def named_arguments(entry: Any, init: Sequence[Any]) -> Dict[str, Any]:
    """A constructor's arguments by the names of params: `init_<name>`."""
    names = [name for name in inspect.signature(entry).parameters if name != "self"]
    words = [*names, *[str(i) for i in range(len(names), len(init))]]
    return {INIT + word: encoded(value) for word, value in zip(words, init)}


def word_of(name: str) -> str:
    """A name of a module's state as the name of an input: `fc_weight` for `fc.weight`."""
    return re.sub(r"\W", "_", name)


def having(module: Any, kept: Mapping[str, Any]) -> Dict[str, Any]:
    """Those of further tensors of state for which a module has a buffer, which is state from now on."""
    buffers = {word_of(name): name for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    own = {word: value for word, value in kept.items() if word in buffers}
    if own:
        object.__setattr__(module, KEPT, frozenset(buffers[word] for word in own))
    return own


def state_of(module: Any) -> Dict[str, str]:
    """The names of parameters, of running statistics (`running_mean`, `running_var`) and of buffers that are said to be
    state, by the names of inputs; other buffers are constants."""
    names = [name for name, buffer in module.named_buffers() if buffer.is_floating_point()]
    kept: Any = getattr(module, KEPT, frozenset())
    statistics = [name for name in names if name.rpartition(".")[2].startswith(RUNNING) or name in kept]
    return {word_of(name): name for name in [*(name for name, _ in module.named_parameters()), *statistics]}


def state_names(module: Any, spec: Any, given: Mapping[str, Any]) -> Dict[str, str]:
    """The names of a module's state by those of the tensors that are given for it: the same, else as `renamed`."""
    own = {word: shape_of_state(module, name) for word, name in state_of(module).items()}
    same = {word: word for word in own if word in given}
    arguments = [name for name, _ in parsed(spec)] if spec is not None else list(given)
    others = {n: tuple(t.shape) for n, t in given.items() if n not in same and n not in arguments}
    return {**same, **renamed(others, {word: shape for word, shape in own.items() if word not in same})}


def renamed(given: Mapping[str, Any], own: Mapping[str, Any]) -> Dict[str, str]:
    """Names of `own` for those `given`, of the same shape; those that only one fits come first.

    Of several, that of the same kind (weight, bias), of a layer that is matched already, of a similar name, and the
    first. Raises UserModuleError for a tensor that none fits.
    """
    names: Dict[str, str] = {}
    layers: Dict[str, str] = {}

    def free(name: str) -> List[str]:
        return [word for word in own if word not in names.values() and own[word] == given[name]]

    while len(names) < len(given):
        name = min((n for n in given if n not in names), key=lambda n: len(free(n)) > 1)
        fitting = free(name)
        if not fitting:
            raise UserModuleError(f"has no parameter or running statistic {name} of shape {list(given[name])}")
        layer, _, kind = name.rpartition("_")
        names[name] = max(
            fitting,
            key=lambda word: (
                word.rpartition("_")[2] == kind,
                layers.get(layer) == word.rpartition("_")[0],
                likeness(word.rpartition("_")[0], layer),
            ),
        )
        layers[layer] = names[name].rpartition("_")[0]
    return names


def likeness(one: str, other: str) -> float:
    """How similar the names of two layers are, up to 1, without words that say only that they are layers."""
    return difflib.SequenceMatcher(None, PLAIN_WORDS.sub("", one), PLAIN_WORDS.sub("", other)).ratio()


def shape_of_state(module: Any, name: str) -> Tuple[int, ...]:
    """The shape of a parameter or buffer."""
    owner, _, own = name.rpartition(".")
    return tuple(getattr(module.get_submodule(owner), own).shape)


def statistics_after(function: Any) -> Dict[str, Any]:
    """What a call has left in norms' running statistics, but in evaluation mode, and in further state, as outputs
    `after_<name>`."""
    if not is_module_class(type(function)):
        return {}
    import torch

    kept: Any = getattr(function, KEPT, frozenset())
    buffers = {n: buffer for n, buffer in function.named_buffers() if function.training or n in kept}
    with torch._C.DisableTorchFunction():  # A recording has no step for what a layer writes to its buffers.
        return {AFTER + word: buffers[name].clone() for word, name in state_of(function).items() if name in buffers}


def put(module: Any, values: Mapping[str, Any]) -> None:
    """Make tensors a module's state, by the names of inputs; a buffer becomes a copy, since a call may change it.

    Raises UserModuleError for a tensor of another shape: PyTorch's recurrent layers do not check it, and end the
    process.
    """
    names = state_of(module)
    shared: Dict[int, List[str]] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        shared.setdefault(id(tensor), []).append(name)
    parameters = dict(module.named_parameters())
    for word, value in values.items():
        name = names[word]
        if tuple(value.shape) != shape_of_state(module, name):
            shape = list(shape_of_state(module, name))
            raise UserModuleError(f"{name} has shape {shape}, and {list(value.shape)} is given")
        if name in parameters:
            value._is_param = True  # PyTorch's own mark of a tensor that is a parameter, too
            paths = shared[id(parameters[name])]
        else:
            value, paths = value.detach().clone(), [name]
        for path in paths:
            owner, _, own = path.rpartition(".")
            setattr(module.get_submodule(owner), own, value)


def arguments_of(spec: Any, given: Mapping[str, Any]) -> List[Any]:
    """The arguments of a call in their order. Raises UserModuleError for one that is not given."""
    import torch

    if spec is None:
        return list(given.values())
    arguments: List[Any] = []
    for name, dtype in parsed(spec):
        if name not in given:
            raise UserModuleError(f"{name} is not given")
        value = given[name]
        if dtype.startswith(COMPLEX):
            arguments.append(whole(value))
        else:
            arguments.append(value.to(getattr(torch, dtype)) if dtype else decoded(value))
    return arguments


def whole(parts: Any) -> Any:
    """The complex numbers of which a tensor has the real and imaginary parts in its last axis."""
    import torch

    return torch.complex(parts[..., 0], parts[..., 1])


def in_parts(value: Any) -> Any:
    """A result; complex numbers as their real and imaginary parts, in one further axis."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value
    return torch.view_as_real(value.resolve_conj() if value.is_conj() else value)


def parsed(spec: str) -> Iterator[Tuple[str, str]]:
    """The names in `x, mask: bool`, with their dtypes."""
    for item in filter(None, spec.split(",")):
        name, _, dtype = item.partition(":")
        yield name.strip(), dtype.strip()


def outputs_of(result: Any) -> Dict[str, Any]:
    """What a call returned, by name: `y`, or `y0`, `y1`, ... of several, or the names of a mapping; no tensors without
    elements, in which there is nothing to compare."""
    leaves = {name: value for name, value in flat(result) if 0 not in tuple(getattr(value, "shape", ()))}
    return {"y" if not name else f"y{name}" if name[0].isdigit() else name: value for name, value in leaves.items()}


def flat(value: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    """The tensors in a result by their places."""
    if value is None:
        return
    if isinstance(value, Mapping):
        items: Any = ((re.sub(r"\W", "_", str(key)), item) for key, item in value.items())
    elif isinstance(value, (tuple, list)):
        items = ((str(i), item) for i, item in enumerate(value))
    else:
        yield name, value
        return
    for key, item in items:
        yield from flat(item, f"{name}_{key}" if name else key)
