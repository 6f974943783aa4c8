"""Which algorithm does a backend's kernel use? Inputs that distinguish algorithms, run on every backend."""

FINGERPRINTED = ("layer_norm", "group_norm", "instance_norm", "batch_norm", "linear", "clip_grad_norm")
"""The ops that can be fingerprinted; here, so that `parity --help` loads no more."""

DTYPES = ("float32", "float64")
"""The dtypes that can be probed."""

DEFAULT_BACKENDS = ("torch", "paddle", "oneflow", "numpy")
"""The default backends."""
