"""An adapter's op that is more than one call of its framework says so, and computes 16 bits in float32."""

from __future__ import annotations

import numpy as np
import pytest

from parity.adapters import ADAPTERS, adapter_class
from parity.adapters.base import Adapter, Job, composed, composed_unless
from parity.adapters.bits import bits_of, values_of
from parity.adapters.jax.adapter import JaxAdapter
from parity.adapters.strides import is_narrow, placed, storage_of, widened
from tests.adapters import compositions
from tests.adapters.compositions import compositions as found
from tests.adapters.compositions import implemented

FRAMEWORKS = [name for name in ADAPTERS if name != "numpy"]


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_what_composes_is_declared_and_nothing_else(adapter):
    cls = adapter_class(adapter)
    assert list(implemented(adapter))
    for op in implemented(adapter):
        declared, lines = cls.declared(op), found(adapter, op, {})
        assert (declared is not None) == bool(lines), f"{adapter} {op}: {lines}"
        assert not (declared and found(adapter, op, declared)), f"{adapter} {op} also composes with {declared}"


class Forgetful(JaxAdapter):
    """Compositions in several disguises, none declared, and two plain calls."""

    def relu(self, x):
        return x * (x > 0)

    def exp(self, x):
        return self.scaled(self.numpy.exp2(x))

    def scaled(self, x):
        return self.numpy.log(x)

    def log(self, x):
        return (lambda y: self.numpy.expm1(y))(self.numpy.log1p(x))

    def sqrt(self, x):
        y = [self.numpy.square(x)]
        for part in y:
            y = self.numpy.cbrt(part)
        return y

    def sin(self, x):
        return self.numpy.sin(self.numpy.reshape(x, (x.shape[0] * 2, -1))).T

    def cos(self, x):
        return -self.numpy.cos(x)


@pytest.mark.parametrize(
    ("op", "composes"),
    [("relu", True), ("exp", True), ("log", True), ("sqrt", True), ("sin", False), ("cos", False), ("tanh", False)],
)
def test_arithmetic_is_found_behind_helpers_lambdas_and_loops(op, composes, monkeypatch):
    monkeypatch.setattr(compositions, "adapter_class", lambda _: Forgetful)
    assert bool(found("jax", op, {})) is composes


class Doubled(Adapter):
    """Compositions of NumPy, with what they were given."""

    dtypes = None

    def leaf(self, array, requires_grad):
        return array

    def to_numpy(self, tensor):
        return tensor

    def gradients(self, outputs, grad_outputs, leaves):
        return [dy * 3 for dy in grad_outputs]

    @composed
    def exp(self, x):
        return {"y": x * 3, "parts": [x + 1, x.argmax()]}

    @composed_unless(reduction="none")
    def mse_loss(self, x, target, reduction):
        return x - target

    def relu(self, x):
        return x * 3


def of(op, x, **more):
    return Doubled("cpu", 1).run(Job(op, {"x": x}, {}, {"y": x}, ["x"], **more))


def test_a_composition_in_sixteen_bits_is_computed_in_float32_and_rounded_once():
    x = np.array([1.001, 2.003], "float16")
    outputs = of("exp", x)
    assert [outputs["y"].dtype, outputs["grad.x"].dtype, outputs["parts"][0].dtype] == ["float16"] * 3
    np.testing.assert_array_equal(outputs["y"], (x.astype("float32") * 3).astype("float16"))
    bits = bits_of(np.array([1.01, 2.03]))
    outputs = of("exp", bits)
    np.testing.assert_array_equal(outputs["y"], bits_of(values_of(bits) * 3))
    assert outputs["parts"][1] == 1
    assert of("exp", np.array(bits[0]))["y"].shape == ()
    assert of("exp", np.ones(2))["y"].dtype == "float64"


def test_a_plain_call_and_a_users_function_get_their_own_dtype():
    x = np.ones(2, "float16")
    assert of("relu", x)["y"].dtype == "float16"
    seen = []
    of("exp", x, function=lambda x: seen.append(x.dtype) or x)
    assert seen == ["float16"]


def test_some_arguments_make_an_op_a_plain_call():
    assert Doubled.composes("mse_loss", {"reduction": "mean"})
    assert not Doubled.composes("mse_loss", {"reduction": "none"})
    linear = adapter_class("jax")
    assert linear.composes("linear", {"x": np.ones(2), "bias": np.ones(2)})
    assert not linear.composes("linear", {"x": np.ones(2)})
    assert linear.composes("conv2d", {"bias": np.ones(2)})
    assert linear.composes("rotary_embedding", {})
    assert not linear.composes("relu", {})


def test_a_part_that_the_user_brings_is_not_paritys_composition():
    torch = adapter_class("torch")
    adapter = torch.__new__(torch)
    job = Job("multi_head_attention", {}, {})
    assert adapter.is_composition(job)
    adapter.adopt(lambda name: (lambda **given: given) if name == "linear" else None)
    assert not adapter.is_composition(job)


def test_a_widened_view_keeps_its_strides():
    view = placed(np.ones((2, 3), "float16"), {"size": 12, "strides": [1, 4], "offset": 1})
    wide = widened(view)
    assert (wide.dtype, is_narrow(wide)) == ("float32", False)
    assert storage_of(wide)[1:] == storage_of(view)[1:]
    np.testing.assert_array_equal(wide, view)
