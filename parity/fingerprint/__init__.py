"""Which algorithm does a backend's kernel use? Inputs made to tell, run on every backend, and what they tell."""

FINGERPRINTED = ("layer_norm", "group_norm", "instance_norm", "batch_norm", "linear", "clip_grad_norm")
"""The ops that can be fingerprinted; here, so that `parity --help` need not load more."""

DTYPES = ("float32", "float64")
"""The dtypes in which they can be."""

DEFAULT_BACKENDS = ("torch", "paddle", "oneflow", "numpy")
"""Who is asked where the command line names nobody."""
