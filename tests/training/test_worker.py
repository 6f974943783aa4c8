"""What a worker keeps and answers while it trains, and what it says of the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.training.schedules import SCHEDULES
from parity.training.spec import Clip, Group, Schedule, Training
from parity.training.steps import rates
from parity.training.worker.records import Ring, Sketcher, perturbed
from tests.training.examples import preset, training
from tests.training.requests import TrainingClient, client
from tests.training.whole_steps import stepped

ADAMW = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
SGD = {"lr": 0.05, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
MLP = [{"linear": {"out_features": 8}}, {"activation": "tanh"}, {"linear": {"out_features": 4}}]
BLOBS = {"name": "classification", "features": (6,), "classes": 4}
WARM = Schedule(
    "warmup_polynomial", {"warmup_steps": 3, "total_iters": 30, "start_factor": 0.1, "power": 1.0, "end_lr": 0.0}
)


def cnn(**more: Any) -> Training:
    return preset("cnn", optimizer="adamw", options=ADAMW, schedule=WARM, clip=Clip("norm", 0.5), **more)


def mlp(**more: Any) -> Training:
    return training(MLP, BLOBS, **{"options": SGD, **more})


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("framework"), "torch") as found:
        yield found


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    with client(tmp_path_factory.mktemp("oracle"), "numpy") as found:
        yield found


@pytest.fixture(
    params=[pytest.param("framework", marks=pytest.mark.frameworks), pytest.param("oracle", marks=pytest.mark.process)]
)
def clean(request: pytest.FixtureRequest) -> TrainingClient:
    """A worker without user ops."""
    found: TrainingClient = request.getfixturevalue(request.param)
    return found


Loaded = Callable[[str], TrainingClient]


@pytest.fixture(scope="module")
def with_ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """A worker of PyTorch that takes one file of user ops after the other."""
    with client(tmp_path_factory.mktemp("ops")) as found:

        def load(text: str) -> TrainingClient:
            return loaded(found, text)

        yield load


def loaded(d: TrainingClient, text: str) -> TrainingClient:
    path = d.folder / "my_ops.py"
    path.write_text(text)
    reply = d.worker.process.request(
        {"do": "load", "path": str(path), "wanted": [text.split("def ")[1].split("(")[0]]}, 60
    )
    assert reply["ok"], reply
    return d


def test_records_are_there_for_the_last_steps_only(clean: TrainingClient) -> None:
    reply, _ = clean.train(cnn(steps=12, accumulation=2), memory=30_000)
    keeps = reply["keeps"]
    assert 2 <= keeps < 12
    curves = clean.steps(12)
    np.testing.assert_array_equal(curves["rows"], clean.drawn.setting.order)
    gone, _ = clean.ask("record", step=12 - keeps)
    assert (gone["outcome"], gone["message"]) == (
        "error",
        f"ValueError: the tensors of step {12 - keeps} are no longer kept; the last step was 12",
    )
    records = [clean.record(step) for step in range(13 - keeps, 13)]
    for number, record in enumerate(records, 13 - keeps):
        assert float(record["loss"]) == curves["loss"][number - 1]
        np.testing.assert_array_equal(record["rows"], clean.drawn.setting.order[number - 1])
    for before, after in pairwise(records):
        for name in reply["tracked"]:
            np.testing.assert_array_equal(before[name], after[f"before.{name}"])
    state = clean.state()
    assert sorted(state) == sorted(reply["tracked"])
    for name, values in state.items():
        np.testing.assert_array_equal(values, records[-1][name])


def test_curves_outlive_the_tensors_of_their_steps(clean: TrainingClient) -> None:
    case = replace(cnn(steps=9), schedule=Schedule("step", {"step_size": 2, "gamma": 0.5}))
    clean.train(case, memory=1)
    curves = clean.steps(9)
    rates = curves["lr"][:, 0]
    np.testing.assert_allclose(rates / rates[0], [0.5 ** (t // 2) for t in range(9)])
    np.testing.assert_array_equal(curves["rows"], clean.drawn.setting.order)


def test_memory_for_little_still_keeps_two_steps(clean: TrainingClient) -> None:
    reply, _ = clean.train(cnn(), memory=1)
    assert reply["keeps"] == 2
    clean.steps(3)
    assert clean.record(2) and clean.record(3)


def test_curves_are_measured_on_the_tensors_of_the_records(clean: TrainingClient) -> None:
    reply, _ = clean.train(cnn(steps=3))
    curves, record, sketcher = clean.steps(3), clean.record(3), Sketcher()
    for i, name in enumerate(reply["tracked"]):
        values = record[name].astype(float)
        assert curves["norms"][2, i] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-12)
        assert curves["sketches"][2, i] == pytest.approx(sketcher.measure(name, record[name])[1], rel=1e-12)
    gradients = [v.astype(float).ravel() for n, v in record.items() if n.startswith("grad.")]
    assert curves["grad_norm"][2] == pytest.approx(np.linalg.norm(np.concatenate(gradients)), rel=1e-6)


def test_going_on_from_a_state_is_as_if_nothing_had_happened(clean: TrainingClient) -> None:
    case = cnn(steps=10, accumulation=2)
    clean.train(case)
    clean.steps(5)
    state = clean.state()
    wanted = clean.steps(5)
    last = clean.record(10)
    clean.train(case)
    clean.restore(5, state)
    found = clean.steps(5)
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    for name, values in clean.record(10).items():
        np.testing.assert_array_equal(values, last[name], err_msg=name)


def test_a_perturbed_start_differs_by_one_ulp(clean: TrainingClient) -> None:
    case = cnn()
    clean.train(case)
    unperturbed = clean.state()
    clean.train(case, perturbed=7)
    perturbed = clean.state()
    clean.train(case, perturbed=7)
    assert all(np.array_equal(perturbed[name], again) for name, again in clean.state().items())
    clean.train(case, perturbed=8)
    other = clean.state()
    for name, values in unperturbed.items():
        if not name.startswith("param."):
            np.testing.assert_array_equal(perturbed[name], values)
            continue
        up, down = np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(-np.inf))
        assert ((perturbed[name] == up) | (perturbed[name] == down)).all()
        assert values.size < 8 or not np.array_equal(perturbed[name], other[name])


def test_the_oracles_trainer_takes_the_steps_of_its_lines(oracle: TrainingClient) -> None:
    groups = tuple(
        Group(tuple(p.name for p in cnn().parameters if (len(p.shape) > 1) == matrix), {**ADAMW, "lr": lr})
        for matrix, lr in ((True, 1e-2), (False, 1e-3))
    )
    case = replace(cnn(steps=4, accumulation=2), groups=groups)
    for dtype in ("float32", "float64", "longdouble"):
        oracle.train(case, dtype=dtype)
        oracle.steps(4)
        record = oracle.record(4)
        before = {name.removeprefix("before."): v for name, v in record.items() if name.startswith("before.")}
        parts = np.split(record["rows"], 2)
        setting = oracle.drawn.setting
        found = stepped(case, 4, before, [(setting.x[rows], setting.target[rows]) for rows in parts], dtype=dtype)
        eps = np.finfo(dtype).eps
        for name, values in found.items():
            assert record[name].dtype == np.dtype("float64" if name == "lr" else dtype), name
            np.testing.assert_allclose(record[name], values, rtol=64 * eps, atol=64 * eps, err_msg=name)
        np.testing.assert_allclose(record["lr"], rates(case, 4))


def test_the_frameworks_curve_is_the_oracles(clean: TrainingClient) -> None:
    case = preset("bert", optimizer="adamw", options=ADAMW, steps=5, accumulation=2, clip=Clip("norm", 0.5))
    clean.train(case, dtype="float64")
    curves = clean.steps(5)
    setting, before = clean.drawn.setting, {}
    before = {f"param.{name}": array for name, array in setting.tensors.items()}
    for step in range(1, 6):
        parts = [(setting.x[rows], setting.target[rows]) for rows in np.split(setting.order[step - 1], 2)]
        before = stepped(case, step, before, parts)
        assert curves["loss"][step - 1] == pytest.approx(float(before["loss"]), rel=1e-9)


FAILING = {
    "a_step_that_raises": (
        "def sgd(param, grad, **options):\n    if options['step'] == 3:\n        raise RuntimeError('no more')\n"
        "    return {'param': param - 0.1 * grad, 'momentum_buffer': options['momentum_buffer']}\n",
        2,
        "step 3: my_ops.py:3: RuntimeError: no more",
    ),
    "rows_that_are_none": (
        "def batch(step, rows):\n    return rows + 1000\n",
        0,
        "step 1: my_ops.py: batch must return 8 row numbers from 0 to 31 as a NumPy array of integers",
    ),
    "a_state_that_is_missing": (
        "def sgd(param, grad, **options):\n    return {'param': param}\n",
        0,
        "step 1: my_ops.py:1: sgd must return a mapping with param, momentum_buffer",
    ),
    "a_parameter_of_another_shape": (
        "def sgd(param, grad, momentum_buffer, **options):\n"
        "    return {'param': param.sum(), 'momentum_buffer': momentum_buffer}\n",
        0,
        "step 1: my_ops.py: sgd returned a param of shape () instead of (8, 6)",
    ),
    "a_gradient_too_few": (
        "def clip_grad_norm(grads, max_norm, norm_type, scope):\n    return {'grads': grads[:1]}\n",
        0,
        "step 1: my_ops.py: clip_grad_norm returned 1 of 4 gradients",
    ),
    "a_rate_that_is_not_taken": (
        "def learning_rate(lr):\n    return lr\n",
        0,
        "step 1: my_ops.py:1: learning_rate must take step by keyword",
    ),
    "a_layer_that_raises": (
        "def linear(x, weight, bias):\n    return x @ weight\n",
        0,
        "step 1: my_ops.py:2: RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x6 and 8x6)",
    ),
}


@pytest.mark.parametrize("fault", FAILING)
def test_errors_name_the_step_and_the_place(fault: str, with_ops: Loaded) -> None:
    text, done, wanted = FAILING[fault]
    d = with_ops(text)
    d.train(mlp(clip=Clip("norm", 0.1), steps=5))
    reply, curves = d.ask("steps", count=4)
    assert (reply["outcome"], reply["done"], reply["message"]) == ("error", done, wanted)
    assert len(curves.get("loss", ())) == done
    again, _ = d.ask("steps", count=1)
    assert again["message"] == f"step {done + 1}: ValueError: an earlier step failed"


def test_a_training_goes_no_further_than_its_steps(clean: TrainingClient) -> None:
    clean.train(mlp(steps=2))
    reply, _ = clean.ask("steps", count=5)
    assert (reply["outcome"], reply["done"]) == ("error", 2)
    assert reply["message"] == "step 3: ValueError: there are only 2 steps"


RIGHT = {
    "sgd": """
def sgd(param, grad, lr, momentum, step, momentum_buffer):
    buffer = grad.clone() if step == 1 else momentum_buffer * momentum + grad
    return {"param": param - lr * buffer, "momentum_buffer": buffer}
""",
    "layers": """
import torch

def linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)

def tanh(x):
    return torch.tanh(x)

def cross_entropy(x, target):
    return torch.nn.functional.cross_entropy(x, target)
""",
    "loop": """
import torch

def batch(rows):
    return rows

def shard(rows, rank, ranks):
    return rows

def zero_grad(parameters):
    for parameter in parameters:
        parameter.grad = None

def scale_loss(loss, accumulation):
    return loss / accumulation

def clip_grad_norm(grads, max_norm, norm_type, scope):
    norm = torch.sqrt(sum((grad * grad).sum() for grad in grads))
    return {"grads": [grad * min(1.0, max_norm / (float(norm) + 1e-6)) for grad in grads], "total_norm": norm}

def learning_rate(step, lr, name, warmup_steps, total_iters, start_factor, power, end_lr):
    if step - 1 < warmup_steps:
        return lr * (start_factor + (1 - start_factor) * (step - 1) / warmup_steps)
    return lr * (1 - (step - 1 - warmup_steps) / (total_iters - warmup_steps))
""",
}


@pytest.mark.parametrize("what", RIGHT)
def test_functions_of_the_user_that_are_right_change_nothing(
    what: str, with_ops: Loaded, framework: TrainingClient
) -> None:
    case = mlp(clip=Clip("norm", 0.1), accumulation=2, schedule=WARM, steps=8)
    d = with_ops(RIGHT[what])
    d.train(case)
    mine = d.steps(8)
    framework.train(case)
    wanted = framework.steps(8)
    for name, values in wanted.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-5, atol=1e-7, err_msg=name)
    assert "norm" in d.record(8)


def test_functions_of_the_user_are_called(with_ops: Loaded) -> None:
    d = with_ops("def batch(step, rows):\n    return rows[::-1].copy()\n\ndef scale_loss(loss):\n    return loss * 3\n")
    d.train(mlp())
    curves = d.steps(1)
    np.testing.assert_array_equal(curves["rows"][0], d.drawn.setting.order[0][::-1])
    tripled = d.record(1)
    d = with_ops("def batch(step, rows):\n    return rows\n")
    d.train(mlp())
    d.steps(1)
    name = "grad.linear0.weight"
    np.testing.assert_allclose(tripled[name], 3 * d.record(1)[name], rtol=1e-5, atol=1e-8)


def test_gradients_that_nobody_clears_add_up(with_ops: Loaded) -> None:
    d = with_ops("def zero_grad(parameters):\n    pass\n")
    d.train(mlp(options={**SGD, "lr": 0.0}, rows=8))
    d.steps(2)
    name = "grad.linear0.bias"
    np.testing.assert_allclose(d.record(2)[name], 2 * d.record(1)[name], rtol=1e-5)


def test_a_lamb_of_the_user_takes_the_place_of_what_torch_lacks(with_ops: Loaded) -> None:
    d = with_ops(
        "def lamb(param, grad, exp_avg, exp_avg_sq, lr, betas, eps, weight_decay, step):\n"
        "    return {'param': param - lr * grad, 'exp_avg': grad, 'exp_avg_sq': grad * grad}\n"
    )
    d.train(mlp(optimizer="lamb", options=ADAMW, schedule=WARM))
    d.steps(3)
    record = d.record(3)
    name = "linear2.bias"
    np.testing.assert_array_equal(record[f"state.exp_avg.{name}"], record[f"grad.{name}"])
    schedule = SCHEDULES[WARM.name]
    lr = schedule.rate(1e-2, 2, schedule.options(**WARM.options))
    perturbed = record[f"before.param.{name}"] - lr * record[f"grad.{name}"]
    np.testing.assert_allclose(record[f"param.{name}"], perturbed, rtol=1e-6)


def test_batch_norm_of_the_user_keeps_its_statistics(with_ops: Loaded) -> None:
    d = with_ops(
        "def batch_norm(x, running_mean, running_var, training, momentum, eps, weight, bias):\n"
        "    assert training and momentum == 0.1\n"
        "    return {'y': x * 1.0, 'running_mean': running_mean + 1, 'running_var': running_var}\n"
    )
    d.train(cnn())
    d.steps(2)
    means = [v for n, v in d.record(2).items() if n.startswith("buffer.") and n.endswith("running_mean")]
    assert means and all((v == 2).all() for v in means)


def test_numpy_calls_the_users_functions_around_the_model(oracle: TrainingClient, tmp_path: Path) -> None:
    case = mlp(clip=Clip("norm", 0.1), steps=3, options={**SGD, "momentum": 0.0})
    oracle.train(case)
    wanted = oracle.steps(3)
    ops = (
        "def sgd(param, grad, lr):\n    return {'param': param - lr * grad}\n\n"
        "def learning_rate(step, lr, name):\n    return lr\n"
    )
    with client(tmp_path / "ops", "numpy", ops=ops) as d:
        d.train(case)
        for name, values in d.steps(3).items():
            np.testing.assert_allclose(values, wanted[name], rtol=1e-5, atol=1e-8, err_msg=name)
        loaded(d, "def tanh(x):\n    return x\n")
        with pytest.raises(AssertionError, match=r"my_ops\.py: on NumPy, .* cannot call your tanh"):
            d.train(case)


def test_cells_and_trainings_take_turns(clean: TrainingClient) -> None:
    clean.train(mlp(steps=4))
    first = clean.steps(2)
    path = clean.folder / "x.npy"
    np.save(path, np.ones((2, 3), np.float32))
    cell = {
        "cell": 1, "op": "linear", "dtype": "float32", "params": {}, "droppable": [], "absent": ["bias"], "grad_outputs": {},
        "tensors": {"x": str(path), "weight": str(path)}, "differentiable": [], "lists": [], "layouts": {}, "calls": 1,
        "watched": {}, "storage": {},
        "max_elements": 100,
    }  # fmt: skip
    reply, outputs = clean.ask("run", **cell)
    assert reply["outcome"] == "ok" and (outputs["y"] == 3).all()
    assert len(first["loss"]) == len(clean.steps(2)["loss"]) == 2


def test_numbers_that_overflow_go_on_as_nan(clean: TrainingClient) -> None:
    model = [{"linear": {"out_features": 8}}, {"linear": {"out_features": 2}}]
    data = {"name": "regression", "features": (6,), "targets": 2}
    clean.train(training(model, data, options={**SGD, "lr": 1e30}, steps=6))
    curves = clean.steps(6)
    assert np.isfinite(curves["loss"][0]) and np.isnan(curves["loss"][-1]) and np.isnan(curves["norms"][-1]).all()
    assert np.isnan(clean.record(6)["output"]).all()


def test_requests_without_a_training_are_errors(tmp_path: Path) -> None:
    with client(tmp_path, "numpy") as d:
        reply, _ = d.ask("steps", count=1)
    assert (reply["outcome"], reply["message"]) == ("error", "ValueError: there is no training to continue")


def test_a_ring_uses_its_memory_again() -> None:
    ring, seen = Ring(2), set()
    for step in range(6):
        ring.open()
        ring.keep("param.a", np.full((3, 2), step, np.float32))
        ring.keep("output", np.full((step,), step, np.float32))
        ring.close(step)
        seen.add(id(ring.entries[step]["param.a"]))
    assert sorted(ring.entries) == [4, 5] and len(seen) == 2
    assert ring.record(5)["before.param.a"].max() == 4 and ring.record(5)["output"].shape == (5,)


def test_a_sketch_tells_tensors_of_the_same_norm_apart() -> None:
    sketcher, rng = Sketcher(), np.random.default_rng(0)
    values = rng.normal(size=200_000).astype(np.float32)
    shuffled = rng.permutation(values)
    (norm, sketch), (other_norm, other) = sketcher.measure("a", values), sketcher.measure("a", shuffled)
    assert norm == pytest.approx(other_norm, rel=1e-12) and abs(sketch - other) > 1
    assert sketch != sketcher.measure("b", values)[1]
    assert abs(sketch) < 6 * np.sqrt(values.size)
    assert sketch == Sketcher().measure("a", values)[1]
    assert all(np.isnan(sketcher.measure("a", np.array([1.0, np.nan]))))


def test_the_next_number_of_every_dtype() -> None:
    for dtype in ("float32", "float64", "longdouble"):
        values = np.linspace(-1, 1, 99).astype(dtype)
        changed = perturbed(values, "a", 1)
        assert changed.dtype == values.dtype and (changed != values).all()
        assert (np.abs(changed - values) <= np.spacing(np.abs(values)) * 1.0).all()
        assert 20 < (changed > values).sum() < 79
