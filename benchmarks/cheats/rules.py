"""Rules of other projects, each as a function of a reference's and a candidate's file.

A rule returns "" where the pair passes, else what it objects to; an exception of the candidate is an objection, too. Each is
the project's rule as its source has it, on a CPU: seeds, trials, order of calls, copies, tolerances. What a project asks of
speed or of the source's text is left out. Where its format is not KernelBench's, inputs and constructors are those of the
pair, and its docstring says what was adapted. Comparisons are looked up when they are called, as there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cheats.loading import Problem, candidate, cloned, outputs, problem, redrawn, seeds

Rule = Callable[[Path, Path], str]


def assert_close(reference: Path, new: Path) -> str:
    """`torch.testing.assert_close` with its own tolerances on the given inputs, once.

    What a test by hand does: both modules get the same tensors, the reference first.
    """
    given, made = problem(reference), candidate(new)
    expected_of, got_of = given.built(given.model), given.built(made)
    inputs = given.inputs(0)
    with torch.no_grad():
        expected = expected_of(*inputs)
        torch.testing.assert_close(got_of(*inputs), expected)
    return ""


def kernelbench(reference: Path, new: Path) -> str:
    """Five draws of inputs, shapes equal, `allclose` with 1e-4 for both tolerances, all without gradients.

    ScalingIntelligence/KernelBench, src/kernelbench/eval.py at 423217d9 (`eval_kernel_against_ref`), five trials as in
    scripts/eval_from_generations.py. The candidate's source is executed in the globals of the reference's; the reference
    is called first, with the same tensors, all of which are cast to float32.
    """
    names: dict[str, Any] = {}
    exec(reference.read_text(), names)
    given = Problem(names["Model"], names["get_inputs"], names["get_init_inputs"])
    with torch.no_grad():
        expected_of = given.built(given.model)
        exec(new.read_text(), names)
        got_of = given.built(names["ModelNew"])
        for seed in seeds(5):
            inputs = [x.to(torch.float32) if isinstance(x, torch.Tensor) else x for x in given.inputs(seed)]
            expected = expected_of(*inputs)
            got = got_of(*inputs)
            if expected.shape != got.shape:
                return f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
            if not torch.allclose(expected, got, atol=1e-4, rtol=1e-4):
                return "output mismatch"
    return ""


def robust_kbench(reference: Path, new: Path) -> str:
    """Five draws, fresh modules in each; candidate, reference and candidate again; `allclose` with 1e-5, no shapes.

    SakanaAI/robust-kbench, robust_kbench/sandbox/correct_forward_fn.py at 078f5bab (`check_forward_correctness`), which
    gives a function to one class of modules; here it is the candidate's own class. Several sets of sizes, which a task
    may have, are left out: a pair has one.
    """
    given, made = problem(reference), candidate(new)
    with torch.no_grad():
        for seed in seeds(5):
            inputs = given.inputs(seed)
            expected_of, got_of = given.built(given.model, seed), given.built(made, seed)
            first = got_of(*inputs)
            expected = expected_of(*inputs)
            second = got_of(*inputs)
            for call, got in (("first", first), ("second", second)):
                if not torch.allclose(expected, got, atol=1e-5, rtol=1e-5):
                    return f"output mismatch in the {call} call"
    return ""


def robust_kbench_all(reference: Path, new: Path) -> str:
    """The forward rule, then gradients of parameters and inputs, then the filters of problems.

    SakanaAI/robust-kbench at 078f5bab: robust_kbench/sandbox/correct_backward_fn.py, run for tasks that come with a
    backward kernel, and run_filter.py, which sorts out problems before any candidate is seen. The filter that asks a
    language model is left out; gradients are asked for all inputs of floats.
    """
    return robust_kbench(reference, new) or _gradients(reference, new) or _degenerate(reference)


def _gradients(reference: Path, new: Path) -> str:
    given, made = problem(reference), candidate(new)
    if not _differentiable(given):
        return ""
    for seed in seeds(5):
        got_of, expected_of = given.built(made, seed), given.built(given.model, seed)
        got, expected = (_gradients_of(side, given.inputs(seed), seed) for side in (got_of, expected_of))
        if set(got) != set(expected):
            return f"gradients of {', '.join(sorted(set(got) ^ set(expected)))} on one side only"
        for name, gradient in got.items():
            shapes = gradient.shape == expected[name].shape
            if not shapes or not torch.allclose(gradient, expected[name], atol=1e-5, rtol=1e-5):
                return f"gradient of {name} differs"
    return ""


def _differentiable(given: Problem) -> bool:
    """Whether the reference has gradients, so that there would be a backward kernel."""
    result = given.built(given.model)(*[_leaf(x) for x in given.inputs(0)])
    return bool(result.requires_grad)


def _gradients_of(made: Any, given: Sequence[Any], seed: int) -> dict[str, Any]:
    """Gradients by name under a random weight of each element of the output."""
    inputs = [_leaf(x) for x in given]
    output = made(*inputs)
    torch.manual_seed(seed)
    output.backward(torch.randn_like(output))
    leaves = dict(made.named_parameters()) | {f"input {i}": x for i, x in enumerate(inputs)}
    return {name: x.grad for name, x in leaves.items() if isinstance(x, torch.Tensor) and x.grad is not None}


def _leaf(x: Any) -> Any:
    floats = isinstance(x, torch.Tensor) and x.is_floating_point()
    return x.detach().clone().requires_grad_() if floats else x


def _degenerate(reference: Path) -> str:
    """Outputs of five seeds that are small, vary little at all or along an axis, or hardly follow the inputs."""
    given = problem(reference)
    with torch.no_grad():
        fresh = torch.stack([given.built(given.model, seed)(*given.inputs(seed)).float() for seed in range(5)])
        one = given.built(given.model)
        same = torch.stack([one(*given.inputs(seed)).float() for seed in range(5)])
    if fresh.abs().max() < 0.01:
        return "filter: outputs within 0.01 of 0"
    for axis in range(fresh.ndim):
        if bool((fresh.std(axis) < 0.01).all()):
            return f"filter: outputs vary by less than 0.01 along axis {axis}"
    return "filter: outputs hardly depend on inputs" if bool((same.std(0) < 0.01).all()) else ""


def backendbench(reference: Path, new: Path) -> str:
    """`assert_close` with 1e-2 for both tolerances, NaN equal to NaN, dtypes equal, floats drawn from [0, 1).

    meta-pytorch/BackendBench, BackendBench/eval.py at 66e0dbc0 (`eval_correctness_test`, and the check before timing in
    `eval_performance`); inputs as `deserialize_args` draws them for its TorchBench suite, here in the shapes of the pair.
    An operator there has several recorded shapes, and its OpInfo suite has odd ones, too; a pair has one. The reference
    is called first, with the same tensors.
    """
    given, made = problem(reference), candidate(new)
    expected_of, got_of = given.built(given.model), given.built(made)
    for seed in range(3):
        inputs = redrawn(
            given.inputs(seed), lambda x: torch.testing.make_tensor(x.shape, dtype=x.dtype, device="cpu", low=0, high=1)
        )
        expected = expected_of(*inputs)
        got = got_of(*inputs)
        for one, other in zip(outputs(expected), outputs(got), strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, atol=1e-2, rtol=1e-2)
    return ""


def flashinfer_bench(reference: Path, new: Path) -> str:
    """Three draws of normal inputs; shape and dtype equal, all finite, no element off by 1e-2 both ways.

    flashinfer-ai/flashinfer-bench, flashinfer_bench/bench/evaluators/default.py and bench/utils.py at 40e6ca78 (0.1.2 and
    later). Inputs and expected outputs are made before the candidate is loaded; the tensors are not copied.
    """
    given = problem(reference)
    expected_of = given.built(given.model)
    with torch.no_grad():
        trials = [redrawn(given.inputs(seed), torch.randn_like) for seed in range(3)]
        expected = [outputs(expected_of(*inputs)) for inputs in trials]
        got_of = given.built(candidate(new))
        for inputs, wanted in zip(trials, expected, strict=True):
            for got, one in zip(outputs(got_of(*inputs)), wanted, strict=True):
                if problem_found := _flashinfer_objection(got, one):
                    return problem_found
    return ""


def _flashinfer_objection(got: Any, expected: Any) -> str:
    if tuple(got.shape) != tuple(expected.shape):
        return f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{got.dtype}, expected {expected.dtype}"
    if torch.isinf(got).any().item() or torch.isnan(got).any().item():
        return "a value is not finite"
    x, y = got.to(torch.float32), expected.to(torch.float32)
    error = torch.abs(x - y)
    beyond = (error > 1e-2) & (error / (torch.abs(y) + 1e-8) > 1e-2)
    return f"{int(beyond.sum())} elements differ" if beyond.any().item() else ""


def gpu_mode(reference: Path, new: Path) -> str:
    """Tests on copies of the inputs, then a benchmark that checks each run on a new draw; 1e-5 relative, 1e-8 absolute.

    gpu-mode/reference-kernels, problems/pmpp_v2/utils.py (`verbose_allclose`) and eval.py (`run_testing`, `leaderboard`) at
    f83cb92a; gpu-mode/kernelbot, examples/utils.py at 4bdd839a has the same. The files share a folder, so that a candidate
    can import the reference. Shapes of a problem are several there; here
    they are those of the pair, with five seeds. Without its limit of time, a benchmark has 100 runs.
    """
    return _gpu_mode(reference, new, 1e-5, 1e-8)


def gpu_mode_loose(reference: Path, new: Path) -> str:
    """The same with both tolerances 2e-2, as problems/bioml/trimul/reference.py sets them."""
    return _gpu_mode(reference, new, 2e-2, 2e-2)


def _gpu_mode(reference: Path, new: Path, rtol: float, atol: float) -> str:
    sys.path.insert(0, str(reference.parent))
    given, made = problem(reference), candidate(new)
    expected_of, kernel = given.built(given.model), given.built(made)
    with torch.no_grad():
        for seed in range(5):
            inputs = given.inputs(seed)
            got = kernel(*cloned(inputs))
            if objection := _mismatch(got, expected_of(*inputs), rtol, atol):
                return objection
        for seed in range(100):
            inputs = given.inputs(13 * seed)
            copies = cloned(inputs)
            got = kernel(*inputs)
            if objection := _mismatch(got, expected_of(*copies), rtol, atol):
                return f"run {seed} of the benchmark: {objection}"
    return ""


def _mismatch(received: Any, expected: Any, rtol: float, atol: float) -> str:
    """Elements beyond a tolerance relative to what is expected, or NaN or infinite on one side only."""
    if received.shape != expected.shape:
        return "size mismatch"
    wrong = torch.abs(received - expected) > atol + rtol * torch.abs(expected)
    for special in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong = torch.logical_or(wrong, torch.logical_xor(special(received), special(expected)))
    count = int(wrong.count_nonzero().item())
    return f"{count} elements differ" if count else ""


RULES: Mapping[str, Rule] = {
    "assert_close": assert_close,
    "KernelBench": kernelbench,
    "robust-kbench": robust_kbench,
    "robust-kbench (all)": robust_kbench_all,
    "BackendBench": backendbench,
    "FlashInfer-Bench": flashinfer_bench,
    "GPU MODE": gpu_mode,
    "GPU MODE (loose)": gpu_mode_loose,
}


def objection(rule: Rule, files: Sequence[Path]) -> str:
    """What a rule objects to, an exception of the candidate included."""
    try:
        return rule(*files)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
