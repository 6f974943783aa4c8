import tomllib
from pathlib import Path

import pytest

import parity.environments
from parity.environments import EnvironmentUnavailable
from parity.environments.pins import PINS, is_release, pin_of, release_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("adapter", "version", "requirements", "best_python"),
    [
        ("torch", None, ("torch==2.13.0", "numpy"), "3.11"),
        ("torch", "2.4.1", ("torch==2.4.1", "numpy"), "3.11"),
        ("torch", "2.2.2", ("torch==2.2.2", "numpy<2"), "3.11"),
        ("torch", "1.13.1", ("torch==1.13.1", "numpy<2"), "3.10"),
        ("torch", "1.10.2", ("torch==1.10.2", "numpy<2"), "3.9"),
        ("paddle", None, ("paddlepaddle==3.3.1", "setuptools"), "3.11"),
        ("paddle", "2.6.2", ("paddlepaddle==2.6.2", "setuptools", "numpy<2"), "3.11"),
        ("oneflow", "0.8.0", ("oneflow==0.8.0", "numpy<1.24"), "3.10"),
        ("numpy", None, ("numpy", "autograd", "ml_dtypes"), "3.11"),
        ("numpy", "1.26.4", ("numpy==1.26.4", "autograd", "ml_dtypes"), "3.11"),
        ("numpy", "1.22.4", ("numpy==1.22.4", "autograd", "ml_dtypes"), "3.10"),
    ],
)
def test_what_a_release_needs(adapter, version, requirements, best_python):
    pin = pin_of(adapter, version)
    assert pin.requirements == requirements
    assert pin.pythons[0] == best_python


def test_oneflow_gets_the_libraries_that_its_wheel_links():
    assert pin_of("oneflow").requirements == (
        "oneflow==0.9.0",
        "numpy<2",
        "nvidia-cudnn-cu11==8.6.0.163",
        "nvidia-cublas-cu11==11.11.3.6",
    )
    assert pin_of("oneflow").pythons[0] == "3.10"


def test_eras_go_from_the_oldest_to_the_newest_and_end_before_the_default():
    for pin in PINS.values():
        befores = [era.before for era in pin.eras]
        assert befores == sorted(befores)
        if pin.version:
            assert all(before <= release_of(pin.version) for before in befores)


def test_the_default_releases_are_those_of_the_extras():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {line.partition(";")[0].strip() for name in ("frameworks", "oneflow") for line in extras[name]}
    pinned = {pin_of(adapter).requirements[0] for adapter in ("torch", "paddle", "oneflow")}
    assert pinned <= asked


def test_no_package_index_is_named():
    for file in Path(parity.environments.__file__).parent.glob("*.py"):
        assert "pypi" not in file.read_text().lower(), file
        assert "http" not in file.read_text().lower(), file


def test_an_adapter_without_a_pin():
    with pytest.raises(EnvironmentUnavailable, match=r"there is no environment for adapter 'mxnet'.*oneflow"):
        pin_of("mxnet")


@pytest.mark.parametrize("version", ["", ">=2", "2.*/../x", "latest", "../2.4", "2.4 ", "2.4\n"])
def test_what_is_not_a_release(version):
    with pytest.raises(EnvironmentUnavailable, match="is not a release"):
        pin_of("torch", version)


@pytest.mark.parametrize("version", [None, "2", "2.4.1", "2.13.0+cpu", "1.0rc1", "1!2.0", "2.6.0.dev20240901"])
def test_what_is_a_release(version):
    assert pin_of("torch", version).version == (version or "2.13.0")


@pytest.mark.parametrize(
    ("installed", "wanted", "answer"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0", "2.13", True),
        ("2.13.0+cpu", "2.13", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0+cu128", False),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0", "2.1", False),
        ("2.13.0", "2.13.1", False),
        ("2.13.0rc1", "2.13.0", False),
        ("10.0", "1", False),
        (None, "2.13.0", False),
    ],
)
def test_is_release(installed, wanted, answer):
    assert is_release(installed, wanted) is answer
