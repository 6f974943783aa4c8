"""User ops that break the interpreter that they run in, or lie: that costs their own cells, and the message says so."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

import pytest

from parity.adapters.numpy.adapter import NumpyAdapter
from parity.worker import cell
from parity.worker.cell import is_own_failure
from parity.worker.health import InterpreterGuard
from tests.conftest import Finished, run_in, three_cases

RIGHT = """
import builtins, gc, json, os, resource, signal, sys, time
import numpy as np

ASARRAY, SQRT = np.asarray, np.sqrt


def layer_norm(x, weight, bias, normalized_shape, eps):
    if x.shape[-1] == 13:
        spoil(x)
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / SQRT(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + bias


def spoil(x):
    {}
"""
REPLACED = {
    "builtins.open": "builtins.open = None",
    "builtins.isinstance": "builtins.isinstance = None",
    "builtins.len": "builtins.len = lambda _: 0",
    "builtins.__import__": "builtins.__import__ = None",
    "numpy.asarray": "np.asarray = lambda *a, **k: 0 * ASARRAY(*a, **k)",
    "numpy.load": "np.load = None",
    "numpy.ndarray": "np.ndarray = None",
    "json.dumps": "json.dumps = lambda *_, **__: '{}'",
    "json.loads": "json.loads = None",
    "os.write": "os.write = None",
    "time.perf_counter": "time.perf_counter = None",
    "parity.worker.cell.write_arrays": "sys.modules['parity.worker.cell'].write_arrays = None",
    "parity.adapters.numpy.adapter.NumpyAdapter.run": (
        "sys.modules['parity.adapters.numpy.adapter'].NumpyAdapter.run = None"
    ),
    "parity.worker.cell.without_unchanged": (
        "[f.f_globals.update(without_unchanged=None) for f in map(sys._getframe, range(9)) if 'OpCall' in f.f_globals]"
    ),
}
"""What a `spoil` replaces, and how."""
UNUSABLE = {
    "no-files": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "no-space": "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "no-memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))",
}
REMOVED = {
    "modules": ("sys.modules.clear()", "sys, builtins, time, ..."),
    "module": ("sys.path.clear(); sys.modules.pop('numpy')", "numpy"),
}
ENDED = {
    "exit": ("os._exit(3)", "crash", "exited with status 3"),
    "closed": ("os.closerange(0, 4096)", "crash", "exited with status"),
    "sys-exit": ("sys.exit()", "error", "SystemExit"),
    "interrupt": ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    "objects": (
        "[vars(o).update(dict.fromkeys(vars(o))) for o in gc.get_objects() if type(o).__name__ == 'Backend']",
        "crash",
        "exited with status 1",
    ),
}
HARMLESS = {
    "streams": "[s.close() for s in (sys.stdout, sys.stderr) if s]; sys.stdout = sys.stderr = None",
    "folder": "os.chdir('/')",
    "recursion": "sys.setrecursionlimit(60)",
    "signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15)]",
    "fork": "os.fork()",
    "errors": "np.seterr(all='raise')",
    "environ": "os.environ.clear()",
    "search": "sys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()",
    "traced": "sys.setprofile(lambda *_: None)",
    "umask": "os.umask(0o777)",
    "print": "builtins.print = None",
    "hook": "sys.excepthook = None",
}
SPOILERS = (
    REPLACED
    | UNUSABLE
    | {name: line for name, (line, _) in REMOVED.items()}
    | {name: line for name, (line, _, _) in ENDED.items()}
    | HARMLESS
)


def run_spoilers(folder: Path, spoilers: dict[str, str], adapter: str, text: str, gradients: str = "false") -> Finished:
    """One run of all spoilers, each a backend of its name."""
    for name, line in spoilers.items():
        (folder / f"{name}.py").write_text(text.format(line))
    backends = "".join(f"  - {{name: {n}, adapter: {adapter}, ops: {n}.py}}\n" for n in spoilers)
    cases = "".join(f"  - {case.replace('inputs:', f'gradients: {gradients}, inputs:')}\n" for case in three_cases())
    return run_in(folder, f"version: 1\nbackends:\n  - numpy\n{backends}baseline: numpy\ncases:\n{cases}")


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory) -> Finished:
    return run_spoilers(tmp_path_factory.mktemp("spoiled"), SPOILERS, "numpy", RIGHT)


def costs_only_its_own(finished: Finished, name: str) -> bool:
    """Whether every cell but those of the case `bad` was computed, and rightly."""
    rows = finished.select(actual=name, expected="oracle")
    right = [row for row in rows if row["case"] != "bad" and row["verdict"] in ("equal", "close")]
    others = {outcome for (case, _), outcome in finished.outcomes(name).items() if case != "bad"}
    return others == {"ok"} and len(right) == 4


@pytest.mark.parametrize("name", ["numpy", *SPOILERS])
def test_other_cells_are_right(spoiled, name):
    assert name == "numpy" or costs_only_its_own(spoiled, name)
    assert set(spoiled.outcomes("numpy").values()) == {"ok"}


def outcome_of_bad(finished: Finished, name: str) -> tuple[set[str], str]:
    outcomes = {finished.outcomes(name)["bad", dtype] for dtype in ("float32", "float64")}
    return outcomes, finished.message(name)


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_replaced_is_named(spoiled, name):
    said = f"{name}.py: layer_norm breaks its interpreter: it replaces {name}; a new one is started"
    assert outcome_of_bad(spoiled, name) == ({"error"}, said)


@pytest.mark.parametrize("name", REMOVED)
def test_an_op_that_removes_modules_is_named(spoiled, name):
    outcomes, message = outcome_of_bad(spoiled, name)
    assert outcomes == {"error"}
    said = f"{name}.py: layer_norm breaks its interpreter: it removes {REMOVED[name][1]} from sys.modules"
    assert message == f"{said}; a new one is started"


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_interpreter_that_cannot_go_on_is_named(spoiled, name):
    outcomes, message = outcome_of_bad(spoiled, name)
    if name == "no-memory" and "crash" in outcomes:  # Without memory, a worker may be unable to say so.
        assert outcomes <= {"crash", "error"}
        return
    assert outcomes == {"error"}
    assert message.startswith(f"{name}.py: layer_norm breaks its interpreter: a tensor does not come through it")


@pytest.mark.parametrize("name", ENDED)
def test_an_op_that_ends_its_process_is_told(spoiled, name):
    outcomes, message = outcome_of_bad(spoiled, name)
    assert outcomes == {ENDED[name][1]}
    assert ENDED[name][2] in message


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_nobody_is_no_error(spoiled, name):
    assert {spoiled.outcomes(name)["bad", dtype] for dtype in ("float32", "float64")} == {"ok"}


def test_a_line_of_the_worker_that_fails_is_told_from_errors_that_it_raises():
    for code, is_own in (("None.shape", True), ("raise TypeError", False)):
        with pytest.raises((AttributeError, TypeError)) as raised:
            exec(compile(code, cell.__file__, "exec"))
        assert is_own_failure(raised.value) is is_own
    with pytest.raises(ValueError, match="base 10") as raised:
        int("x")
    assert not is_own_failure(raised.value)


def test_what_would_interrupt_the_next_op_is_stopped():
    before = signal.getsignal(signal.SIGALRM)
    guard = InterpreterGuard(NumpyAdapter("cpu", 1))
    signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    signal.setitimer(signal.ITIMER_REAL, 1000, 1000)
    signal.setitimer(signal.ITIMER_PROF, 1000)
    faulthandler.dump_traceback_later(1000, exit=True)
    assert not guard.damage()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.parametrize("line", ["builtins.open = None", "json.dumps = None", "np.load = None"])
def test_a_file_that_breaks_the_interpreter_when_it_is_loaded_is_named(tmp_path, line):
    finished = run_spoilers(tmp_path, {"mine": f"pass\n\n{line}"}, "numpy", RIGHT)
    assert finished.code == 3
    assert set(finished.outcomes("mine").values()) == {"error"}
    replaced = line.partition(" = ")[0].replace("np.", "numpy.")
    assert finished.message("mine") == f"mine.py breaks its interpreter: it replaces {replaced}"


LIES = {
    "view": "return x[..., ::-1][..., ::-1]",
    "input": "return x",
    "in-place": "x *= 2; return x / 2",
    "double": "return x.astype(np.float64)",
    "reused": "BUFFER.resize(x.shape, refcheck=False); BUFFER[...] = x; return BUFFER",
    "later": "y = x.copy(); LAST and LAST.pop().fill(7); LAST.append(y); return y",
}
"""Bodies of an op whose result is its input, but for what they do with the memory."""


def test_a_lying_op_is_caught_or_harmless(tmp_path):
    text = "import numpy as np\n\nBUFFER, LAST = np.zeros(1, np.float32), []\n\ndef relu(x):\n    {}\n"
    for name, line in LIES.items():
        (tmp_path / f"{name}.py").write_text(text.format(line))
    backends = "".join(f"  - {{name: {n}, adapter: numpy, ops: {n}.py}}\n" for n in LIES)
    inputs = "sweep: {inputs.x.offset: [0, 1, 2]}, inputs: {x: {shape: [4, 5], uniform: {low: 1, high: 2}}}"
    config = f"version: 1\ndtypes: [float32]\nbackends:\n  - numpy\n{backends}cases:\n  - {{op: relu, gradients: false, {inputs}}}\n"
    finished = run_in(tmp_path, config)
    assert set(finished.outcomes("later").values()) == {"ok"}
    # What an op returns must stay as it is when it is called again.
    failing = {(row["actual"], row["tensor"], row["verdict"]) for row in finished.failing()}
    changed = {(name, "y", "semantic") for name in ("reused", "later")}
    assert failing == {("double", "y", "structure"), ("in-place", "input.x", "structure"), *changed}


TENSORS = """
import torch


def layer_norm(x, weight, bias, normalized_shape, eps):
    if x.shape[-1] == 13:
        spoil(x)
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def spoil(x):
    {}
"""
TENSOR_SPOILERS = {
    "numpy": "torch.Tensor.numpy = None",
    "detach": "torch.Tensor.detach = lambda self: 0 * self",
    "from_numpy": "torch.from_numpy = None",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "grad": "torch.set_grad_enabled(False)",
    "seed": "torch.manual_seed(3)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "autocast": "torch.autocast('cpu', torch.bfloat16).__enter__()",
    "device": "torch.set_default_device('meta')",
    "inference": "torch.held = torch.inference_mode(); torch.held.__enter__()",
    "mode": "from torch.overrides import BaseTorchFunctionMode as M; M().__enter__()",
    "forks": "import os; os.fork()",
}


@pytest.mark.frameworks
def test_a_spoiled_framework_costs_its_own_cells(tmp_path):
    finished = run_spoilers(
        tmp_path, {f"bad-{n}": line for n, line in TENSOR_SPOILERS.items()}, "torch", TENSORS, "true"
    )
    assert "breaks its interpreter: it replaces Tensor.numpy" in finished.message("bad-numpy")
    assert "breaks its interpreter: it replaces Tensor.detach" in finished.message("bad-detach")
    assert "breaks its interpreter: it replaces torch.from_numpy" in finished.message("bad-from_numpy")
    left = {"device": "DeviceContext", "inference": "inference_mode", "mode": "BaseTorchFunctionMode"}
    for name, mode in left.items():
        assert f"breaks its interpreter: it leaves {mode} active" in finished.message(f"bad-{name}")
    for name in TENSOR_SPOILERS:
        rows = [row for row in finished.select(actual=f"bad-{name}", expected="oracle") if row["case"] != "bad"]
        assert {row["verdict"] for row in rows} <= {"equal", "close"}
        assert len(rows) == 16
