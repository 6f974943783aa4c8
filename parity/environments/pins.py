"""The table of pins: for each adapter, the package to install, its release, and what that release also needs.

The default releases are those of the extra `frameworks` in pyproject.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from parity.environments.interpreter import EnvironmentUnavailable

# The characters that PEP 440 allows in a version; they are also valid in folder names on every system.
_VERSION = re.compile(r"\d[0-9A-Za-z.!+_-]*")


@dataclass(frozen=True)
class Era:
    """The Pythons and extras of releases before `before`, instead of the pin's own (None: the pin's)."""

    before: tuple[int, ...]
    pythons: tuple[str, ...] | None = None
    extras: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Pin:
    """How the framework of an adapter is recognised and installed.

    `modules` must be importable (numpy always must). The first of `distributions` is installed, the others are
    recognised. `pythons` are tried in order. `eras` go from the oldest to the newest; the first that applies wins.
    `version` None: the framework has a managed environment only for a requested release. `bare`: only the
    adapter's own ops need the modules; a user's `ops:` file does not. `adapter` is set when `of_release` has chosen
    the release.
    """

    modules: tuple[str, ...]
    distributions: tuple[str, ...]
    version: str | None
    pythons: tuple[str, ...]
    extras: tuple[str, ...] = ()
    eras: tuple[Era, ...] = ()
    size: str = "less than 1 GB"
    bare: bool = False
    adapter: str = ""

    def of_release(self, adapter: str, version: str | None) -> Pin:
        """The pin of one release (None: the default one), with its era applied."""
        version = version or self.version
        release = release_of(version) if version else None
        era = next((era for era in self.eras if release is not None and release < era.before), Era(()))
        return replace(
            self,
            adapter=adapter,
            version=version,
            pythons=self.pythons if era.pythons is None else era.pythons,
            extras=self.extras if era.extras is None else era.extras,
            eras=(),
        )

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements to install; without a version, any release."""
        exact = f"=={self.version}" if self.version else ""
        return (self.distributions[0] + exact, *self.extras)

    def environment_name(self, minor: str) -> str:
        """The name of the managed environment and its folder, for this minor release of Python."""
        return f"{self.adapter}-{self.version}-py{minor}"


PINS = {
    "torch": Pin(
        modules=("torch",),
        distributions=("torch",),
        version="2.13.0",
        pythons=("3.11", "3.12", "3.13"),
        extras=("numpy",),  # not a dependency of torch's wheel
        eras=(
            Era((1, 11), ("3.9", "3.8"), ("numpy<2",)),
            Era((2, 0), ("3.10", "3.9", "3.8"), ("numpy<2",)),
            Era((2, 3), ("3.11", "3.10"), ("numpy<2",)),  # torch 2.3.0 is the first that was built for numpy 2
        ),
        size="about 1 GB as a CPU build, 7 GB with CUDA",
    ),
    "paddle": Pin(
        # `import paddle` imports setuptools, which its wheel does not ask for (seen in 2.6.2, 3.0.0 and 3.3.1).
        modules=("paddle", "setuptools"),
        distributions=("paddlepaddle", "paddlepaddle-gpu"),
        version="3.3.1",
        pythons=("3.11", "3.12", "3.13"),
        extras=("setuptools",),
        eras=(
            Era((2, 5), ("3.10", "3.9", "3.8"), ("setuptools", "numpy<2", "protobuf<=3.20.2")),
            Era((3, 0), ("3.11", "3.12", "3.10"), ("setuptools", "numpy<2")),  # 2.6.2 was built against numpy 1
        ),
    ),
    "oneflow": Pin(
        modules=("oneflow",),
        distributions=("oneflow",),
        version="0.9.0",
        pythons=("3.10", "3.9", "3.8"),
        # The wheel of 0.9.0 links cuDNN 8 and cuBLAS 11 without asking for them: its import fails without these.
        extras=("numpy<2", "nvidia-cudnn-cu11==8.6.0.163", "nvidia-cublas-cu11==11.11.3.6"),
        eras=(Era((0, 9), extras=("numpy<1.24",)),),  # 0.8.0 uses np.bool, which numpy 1.24 removed
        size="about 4 GB",
    ),
    "jax": Pin(
        modules=("jax", "jaxlib"),
        distributions=("jax",),
        version="0.10.2",
        pythons=("3.11", "3.12", "3.13"),
        extras=("optax==0.2.8",),
        eras=(Era((0, 10), extras=("optax",)),),  # the latest that fits
    ),
    "tensorflow": Pin(
        modules=("tensorflow",),
        distributions=("tensorflow-cpu", "tensorflow"),
        version="2.21.0",
        pythons=("3.11", "3.12", "3.13"),
        size="about 1.5 GB",
    ),
    "mindspore": Pin(
        modules=("mindspore",),
        distributions=("mindspore",),
        version="2.10.0",
        pythons=("3.11", "3.12", "3.10"),
        extras=("numpy<2",),
        size="about 2.7 GB",
    ),
    "onnxruntime": Pin(
        modules=("onnxruntime", "onnx"),
        distributions=("onnxruntime", "onnxruntime-gpu"),
        version="1.31.1",
        pythons=("3.11", "3.12", "3.13"),
        extras=("onnx==1.23.2",),
    ),
    "keras": Pin(
        modules=("keras", "tensorflow", "jax", "torch"),
        distributions=("keras",),
        version="3.15.1",
        pythons=("3.11", "3.12", "3.13"),
        extras=("tensorflow-cpu==2.21.0", "jax==0.10.2", "torch==2.13.0"),  # its backends, each a mode
        size="about 3 GB, 9 GB with torch for CUDA",
    ),
    "mlx": Pin(
        modules=("mlx.core",),
        distributions=("mlx[cpu]", "mlx"),  # without the extra there is no backend for Linux
        version="0.32.4",
        pythons=("3.11", "3.12", "3.13"),
        extras=("numpy",),  # not a dependency of MLX's wheel
        size="about 0.1 GB",
    ),
    "numpy": Pin(
        modules=("autograd",),
        bare=True,
        distributions=("numpy",),
        version=None,
        pythons=("3.11", "3.12", "3.13"),
        extras=("autograd", "ml_dtypes"),
        eras=(Era((1, 23, 2), ("3.10", "3.9")),),  # numpy 1.23.2 is the first with wheels for Python 3.11
    ),
}


def pin_of(adapter: str, version: str | None = None) -> Pin:
    """The pin of `adapter` in `version`; raises EnvironmentUnavailable if there is none.

    A version must be one exact release, since it becomes part of a folder's name.
    """
    if adapter not in PINS:
        known = ", ".join(sorted(PINS))
        raise EnvironmentUnavailable(f"there is no environment for adapter {adapter!r}; there are: {known}.")
    if version is not None and not _VERSION.fullmatch(version):
        raise EnvironmentUnavailable(f"{version!r} is not a release; name exactly one, such as 2.4.1.")
    return PINS[adapter].of_release(adapter, version)


def release_of(version: str) -> tuple[int, ...]:
    """The leading numbers of a version without trailing zeros: "2.13.0+cpu" is (2, 13)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    release = [int(number) for number in numbers.group().split(".")] if numbers else []
    while release and release[-1] == 0:
        release.pop()
    return tuple(release)


def is_release(installed: str | None, wanted: str) -> bool:
    """Whether `installed` is the release `wanted`; a local part ("+cpu") counts only where `wanted` has one."""
    if installed is None:
        return False
    if "+" in wanted:
        return installed == wanted
    return _without_zeros(installed.partition("+")[0]) == _without_zeros(wanted)


def _without_zeros(version: str) -> str:
    return re.sub(r"(\.0+)+$", "", version)
