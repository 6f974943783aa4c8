"""BackendBench: an operator of `torch.ops.aten`, and `<op>/<op>_implementation_v1.py` with `<op>_kernel_impl`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.check import CheckError
from parity.check.generated import CANDIDATE, REFERENCE, Source, written
from parity.check.pair import INPUTS, FilePair, FormatPair, Named, candidate_of, named_file

FILE = re.compile(r"(?P<folder>.+)_implementation\w*\.py")
KERNEL = "_kernel_impl"
PLAIN = "(rows, columns)"
"""The shape of a tensor of which nothing else is known."""
SIZES: Mapping[str, int] = {"batch": 2, "channels": 3, "height": 8, "width": 9, "rows": 5, "columns": 33, "inner": 7}
IMAGE, WEIGHT = "(batch, channels, height, width)", "(4, channels, 3, 3)"
STRIDES = {"stride": "[1, 1]", "padding": "[1, 1]", "dilation": "[1, 1]"}
NORM = {"weight": "(columns,)", "bias": "(columns,)"}
MATRICES = {"self": "(rows, inner)", "mat2": "(inner, columns)"}
BATCHES = {"self": "(batch, rows, inner)", "mat2": "(batch, inner, columns)"}
INDEXES = "randint(0, 5, (rows, 3))"
INPUTS_OF: Mapping[str, Mapping[str, str]] = {
    "mm": MATRICES,
    "bmm": BATCHES,
    "matmul": {"self": "(rows, inner)", "other": "(inner, columns)"},
    "addmm": {"self": "(columns,)", "mat1": "(rows, inner)", "mat2": "(inner, columns)"},
    "baddbmm": {"self": "(batch, rows, columns)", "batch1": BATCHES["self"], "batch2": BATCHES["mat2"]},
    "addmv": {"self": "(rows,)", "mat": "(rows, inner)", "vec": "(inner,)"},
    "mv": {"self": "(rows, inner)", "vec": "(inner,)"},
    "dot": {"self": "(columns,)", "tensor": "(columns,)"},
    "convolution": {
        "input": IMAGE,
        "weight": WEIGHT,
        "bias": "(4,)",
        **STRIDES,
        "transposed": "False",
        "output_padding": "[0, 0]",
        "groups": "1",
    },
    "conv2d": {"input": IMAGE, "weight": WEIGHT},
    "native_layer_norm": {"input": PLAIN, "normalized_shape": "[columns]", **NORM, "eps": "1e-5"},
    "layer_norm": {"input": PLAIN, "normalized_shape": "[columns]"},
    "native_group_norm": {
        "input": "(batch, 4, columns)",
        "weight": "(4,)",
        "bias": "(4,)",
        "N": "batch",
        "C": "4",
        "HxW": "columns",
        "group": "2",
        "eps": "1e-5",
    },
    "_softmax": {"dim": "-1", "half_to_float": "False"},
    "_log_softmax": {"dim": "-1", "half_to_float": "False"},
    "max_pool2d_with_indices": {"self": IMAGE, "kernel_size": "[2, 2]"},
    "avg_pool2d": {"self": IMAGE, "kernel_size": "[2, 2]"},
    "_adaptive_avg_pool2d": {"self": IMAGE, "output_size": "[2, 3]"},
    "adaptive_avg_pool2d": {"self": IMAGE, "output_size": "[2, 3]"},
    "_adaptive_avg_pool3d": {"self": "(batch, channels, 4, height, width)", "output_size": "[2, 2, 3]"},
    "upsample_nearest2d": {"self": IMAGE, "output_size": "[16, 18]"},
    "upsample_bilinear2d": {"self": IMAGE, "output_size": "[16, 18]", "align_corners": "False"},
    "pixel_shuffle": {"self": "(batch, 4, height, width)", "upscale_factor": "2"},
    "reflection_pad2d": {"self": IMAGE, "padding": "[1, 1, 2, 2]"},
    "constant_pad_nd": {"pad": "[1, 2]"},
    "embedding": {"weight": "(5, columns)", "indices": INDEXES},
    "gather": {"dim": "0", "index": INDEXES},
    "index_select": {"dim": "0", "index": "randint(0, 5, (3,))"},
    "where": {"condition": "randint(0, 2, (rows, columns)) > 0"},
    "masked_fill": {"mask": "randint(0, 2, (rows, columns)) > 0", "value": "0.5"},
    "clamp": {"min": "-0.5", "max": "0.5"},
    "hardtanh": {"min_val": "-1.0", "max_val": "1.0"},
    "topk": {"k": "3"},
    "flip": {"dims": "[0]"},
    "roll": {"shifts": "[1]", "dims": "[0]"},
    "repeat": {"repeats": "[2, 1]"},
    "permute": {"dims": "[1, 0]"},
    "transpose": {"dim0": "0", "dim1": "1"},
    "unsqueeze": {"dim": "0"},
    "linspace": {},
}
"""Arguments of operators that do not take just any tensors: shapes, or expressions; others by their types."""
POSITIVE = frozenset(("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma", "pow", "acos", "asin", "erfinv"))
BITS = ("bitwise", "__lshift__", "__rshift__", "gcd", "logical")
USUAL: Mapping[str, str] = {"int": "1", "float": "0.5", "number": "0.5", "bool": "False", "List[int]": "[-1]"}
"""The value of an argument without a default, by its type."""
TEXT = '''"""Written by `parity check` for BackendBench: the operator {operator}, and inputs of parity's own."""

import torch

{settings}


def {name}({arguments}):
    """The operator, as PyTorch computes it."""
    return {call}


def get_inputs():
    """Arguments of the operator."""
    return [{values}]
'''
CALLED = '''

def {name}({arguments}):
    """The file's function, called as the operator."""
    return {kernel}({passed})
'''


def operator_pair(reference: str, candidate: str, folder: Path, inputs: str | None) -> FormatPair:
    """The pair of an operator and of a file that replaces it. Raises CheckError."""
    own_path, own_name = named_file(implementation_in(Path(candidate)))
    match = FILE.fullmatch(own_path.name)
    said = reference.removeprefix("torch.ops.").removeprefix("aten").strip(".")
    if match is None and not said:
        raise CheckError(
            f"{own_path} has no operator in its name, as relu_implementation_v1.py has; name it: aten.relu"
        )
    operator = said or operator_of(match["folder"] if match else "")
    kernel = own_name or (match["folder"] if match else operator.replace(".", "__")) + KERNEL
    own = candidate_of(Named(own_path, kernel, False, 1), own_path, "")
    function_of_aten = overload(operator, own_path)
    given = arguments_of(function_of_aten, operator.partition(".")[0])
    name = operator.partition(".")[0].strip("_") + "_op"
    words, tensors = [], []
    for argument, value in given.items():
        is_tensor = value.startswith("torch.")
        words.append(spelled(argument) if is_tensor else value)
        tensors += [spelled(argument)] if is_tensor else []
    text = TEXT.format(
        operator=operator,
        settings="\n".join(f"{n} = {size}" for n, size in SIZES.items() if any(n in v for v in given.values())),
        name=name,
        arguments=", ".join(tensors),
        call=f"torch.ops.aten.{operator}({', '.join(words)})",
        values=", ".join(value for value in given.values() if value.startswith("torch.")),
    )
    file = written(folder, REFERENCE, text)
    called = CALLED.format(name=name, arguments=", ".join(tensors), kernel=kernel, passed=", ".join(words))
    head = Source(own_path).text("BackendBench")
    sizes = "".join(f"\n{n} = {size}" for n, size in SIZES.items() if any(n in word for word in words))
    new = written(folder, CANDIDATE, head + sizes + called)
    at, function = named_file(inputs) if inputs else (file, INPUTS)
    known = Named(file, name, False, 1, Path(f"aten.{operator}"))
    pair = FilePair(known, Named(new, kernel, False, own.line, own_path), (at, function or INPUTS))
    return FormatPair(pair, forward_only=True)


def implementation_in(path: Path) -> str:
    """The file of a folder; the path itself if it is none. Raises CheckError."""
    if not path.is_dir():
        return str(path)
    files = sorted(path.glob(f"{path.name}_implementation*.py"))
    if not files:
        raise CheckError(f"{path} has no {path.name}_implementation_v1.py")
    return str(files[0])


def operator_of(folder: str) -> str:
    """`add.Tensor` of the folder `add__Tensor`; an operator's own underscores at the end stay its own."""
    name, mark, rest = folder.rpartition("__")
    return f"{name}.{rest}" if mark and name.strip("_") and rest else folder


def overload(operator: str, path: Path) -> Any:
    """The operator with the overload that is named, else its default or first one. Raises CheckError."""
    import torch

    name, _, which = operator.partition(".")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise CheckError(f"{path}: torch.ops.aten has no operator {name}; the file is named like its operator")
    names = packet.overloads()
    if which and which not in names:
        raise CheckError(f"{path}: the operator {name} has no overload {which}, only {', '.join(names)}")
    usual = next((n for n in ("default", "Tensor") if n in names), names[0])
    return getattr(packet, which or usual)


def arguments_of(function_of_aten: Any, name: str) -> dict[str, str]:
    """The expressions of an operator's positional arguments, up to the last one that is needed."""
    known = INPUTS_OF.get(name, {})
    given: dict[str, str] = {}
    for argument in function_of_aten._schema.arguments:
        if argument.kwarg_only or (argument.name not in known and argument.has_default_value()):
            break
        kind = str(argument.type)
        if kind == "Tensor" or (kind == "Optional[Tensor]" and argument.name in known):
            given[argument.name] = tensor(known.get(argument.name, PLAIN), name)
        elif kind == "List[Tensor]":
            given[argument.name] = "[]"
        else:
            given[argument.name] = known.get(argument.name, value_of(argument, kind))
    return given


def value_of(argument: Any, kind: str) -> str:
    """The value of an argument that is no tensor."""
    if argument.name == "dim" and kind == "int":
        return "-1"
    return USUAL.get(kind, "None")


def tensor(shape: str, name: str) -> str:
    """A tensor of this shape, or by this expression, as an operator takes it."""
    if shape.startswith("randint"):
        return f"torch.{shape}"
    if name.startswith(BITS):
        return f"torch.randint(0, 100, {shape})"
    return f"torch.rand({shape})" if name in POSITIVE else f"torch.randn({shape})"


def spelled(name: str) -> str:
    """The name of an argument; `self` is one of methods."""
    return "input" if name == "self" else name
