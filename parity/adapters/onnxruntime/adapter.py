"""ONNX Runtime: each op is an ONNX model of one node; tensors are NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.adapters.base import composed
from parity.adapters.shapes import AnyAxesAdapter, conv_pads, each, pads, require

OPSET = 24
"""The first release of ONNX's operators with Attention, RMSNormalization, RotaryEmbedding and Swish."""

IR_VERSION = 10
"""The model format of ONNX 1.16, which every release of ONNX Runtime with this opset reads."""

RESIZES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
GRID_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}
PADS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
NORMS = {1.0: "ReduceL1", 2.0: "ReduceL2"}


class OnnxruntimeAdapter(AnyAxesAdapter):
    """Forward only, on the CPU. Attributes of ONNX for conventions are set to PyTorch's."""

    differentiable = False
    dtypes = None
    no_kernel: ClassVar[tuple[str, ...]] = (
        r"NOT_IMPLEMENTED|does not support double",
        r"Type '[^']+' of (input|output) parameter .* is invalid",
        r"NotImplemented|not supported|not implemented",
    )

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import ml_dtypes
        import numpy
        import onnx
        import onnxruntime

        super().__init__(device, threads, mode, ranks)
        self.numpy = numpy
        self.bfloat16 = numpy.dtype(ml_dtypes.bfloat16)
        self.helper = onnx.helper
        self.framework = onnxruntime

    def version(self) -> str:
        return str(self.framework.__version__)

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - it tracks nothing
        return array.view(self.bfloat16) if array.dtype == "uint16" else array

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.view("uint16") if tensor.dtype == self.bfloat16 else tensor

    def value(self, x: Any) -> Any:
        """A tensor for ONNX Runtime, which takes the bits of bfloat16."""
        kind = self.helper.np_dtype_to_tensor_dtype(x.dtype)
        bits = x.view("uint16") if x.dtype == self.bfloat16 else x
        return self.framework.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)

    def array(self, value: Any) -> Any:
        """A result as an array; for bfloat16 ONNX Runtime exposes only the memory."""
        if value.data_type() != "tensor(bfloat16)":
            return value.numpy()
        memory = (ctypes.c_char * value.tensor_size_in_bytes()).from_address(value.data_ptr())
        return self.numpy.frombuffer(memory, self.bfloat16).reshape(value.shape()).copy()

    def node(self, kind: str, *tensors: Any, n_outputs: Any = 1, **attributes: Any) -> Any:
        """The outputs of one ONNX operator for these tensors; None is an input that is left out."""
        helper = self.helper
        # An empty name after the last input crashes ONNX Runtime 1.31.1 with a segmentation fault.
        while tensors[-1] is None:
            tensors = tensors[:-1]
        given = {f"x{i}": self.numpy.asarray(x, order="C") for i, x in enumerate(tensors) if x is not None}
        names = [f"x{i}" if f"x{i}" in given else "" for i in range(len(tensors))]
        results = [f"y{i}" for i in range(n_outputs)]
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in given.items()
        ]
        # ONNX Runtime infers the types of the results.
        outputs = [helper.make_empty_tensor_value_info(name) for name in results]
        graph = helper.make_graph([helper.make_node(kind, names, results, **attributes)], kind, inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        options = self.framework.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        session = self.framework.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run_with_ort_values(results, {name: self.value(x) for name, x in given.items()})
        returned = [self.array(value) for value in values]
        return returned if n_outputs > 1 else returned[0]

    def integers(self, values: Any) -> Any:
        """A tensor of integers, as operators take axes and sizes; None stays None."""
        return None if values is None else self.numpy.array(values, "int64")

    def like(self, x: Any, value: Any) -> Any:
        """A scalar of the dtype of `x`; None stays None."""
        return None if value is None else self.numpy.array(value, x.dtype)

    def scale(self, x: Any, weight: Any, shape: Sequence[int]) -> Any:
        """The weight, or ones, since some operators need one."""
        return self.numpy.ones(shape, x.dtype) if weight is None else weight

    def shift(self, x: Any, bias: Any, shape: Sequence[int]) -> Any:
        """The bias, or zeros, since some operators need one."""
        return self.numpy.zeros(shape, x.dtype) if bias is None else bias

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        weight = self.scale(x, weight, tuple(normalized_shape))
        return self.node("LayerNormalization", x, weight, bias, axis=-len(normalized_shape), epsilon=eps)

    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        weight = self.scale(x, weight, tuple(normalized_shape))
        return self.node("RMSNormalization", x, weight, axis=-len(normalized_shape), epsilon=eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        weight, bias = self.scale(x, weight, x.shape[1:2]), self.shift(x, bias, x.shape[1:2])
        return self.node("GroupNormalization", x, weight, bias, num_groups=num_groups, epsilon=eps)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        weight, bias = self.scale(x, weight, x.shape[1:2]), self.shift(x, bias, x.shape[1:2])
        return self.node("InstanceNormalization", x, weight, bias, epsilon=eps)

    def batch_norm(
        self,
        x: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        weight: Any = None,
        bias: Any = None,
    ) -> Any:
        # ONNX's momentum is the weight of the old statistic.
        weight, bias = self.scale(x, weight, x.shape[1:2]), self.shift(x, bias, x.shape[1:2])
        returned = self.node(
            "BatchNormalization",
            x,
            weight,
            bias,
            running_mean,
            running_var,
            n_outputs=3 if training else 1,
            epsilon=eps,
            momentum=1.0 - momentum,
            training_mode=int(training),
        )
        y, mean, var = returned if training else (returned, running_mean, running_var)
        return {"y": y, "running_mean": mean, "running_var": var}

    def local_response_norm(self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
        require(size % 2 == 1, "ONNX Runtime's LRN has windows of odd sizes")
        return self.node("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)

    def normalize(self, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:  # noqa: ARG002 - it has none
        require(p in (1, 2), "ONNX's LpNormalization is of order 1 or 2")
        return self.node("LpNormalization", x, axis=dim, p=int(p))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        # ONNX's product of matrices with a bias takes two axes.
        y = self.node("Gemm", x.reshape((-1, x.shape[-1])), weight, bias, transB=1)
        return y.reshape((*x.shape[:-1], -1))

    def matmul(self, x: Any, other: Any) -> Any:
        return self.node("MatMul", x, other)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.node("MatMul", x, other)

    def einsum(self, x: Any, other: Any, equation: str) -> Any:
        return self.node("Einsum", x, other, equation=equation)

    def convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        around = conv_pads(padding, weight.shape[2:], dilation)
        return self.node(
            "Conv",
            x,
            weight,
            bias,
            strides=each(stride, x.ndim - 2),
            pads=[*(before for before, _ in around), *(behind for _, behind in around)],
            dilations=each(dilation, x.ndim - 2),
            group=groups,
        )

    def transposed_convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        n = x.ndim - 2
        return self.node(
            "ConvTranspose",
            x,
            weight,
            bias,
            strides=each(stride, n),
            pads=each(padding, n) * 2,
            output_padding=each(output_padding, n),
            dilations=each(dilation, n),
            group=groups,
        )

    def pooled(
        self,
        kind: str,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        **attributes: Any,
    ) -> Any:
        n = x.ndim - 2
        return self.node(
            kind,
            x,
            kernel_shape=each(kernel_size, n),
            strides=each(kernel_size if stride is None else stride, n),
            pads=each(padding, n) * 2,
            dilations=each(dilation, n),
            ceil_mode=int(ceil_mode),
            **attributes,
        )

    def max_pool(self, **given: Any) -> Any:
        return self.pooled("MaxPool", **given)

    def avg_pool(self, count_include_pad: bool = True, **given: Any) -> Any:
        return self.pooled("AveragePool", count_include_pad=int(count_include_pad), **given)

    def global_pool(self, kind: str, x: Any, output_size: Any) -> Any:
        require(set(each(output_size, x.ndim - 2)) == {1}, "ONNX pools adaptively to one element only")
        return self.node(kind, x)

    def adaptive_avg_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.global_pool("GlobalAveragePool", x, output_size)

    def adaptive_avg_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.global_pool("GlobalAveragePool", x, output_size)

    def adaptive_max_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.global_pool("GlobalMaxPool", x, output_size)

    def adaptive_max_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.global_pool("GlobalMaxPool", x, output_size)

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        require(mode in RESIZES, f"ONNX's Resize has no {mode}")
        n = x.ndim - 2
        sizes = None if size is None else self.integers([*x.shape[:2], *each(size, n)])
        scales = None if size is not None else self.numpy.array([1, 1, *each(scale_factor, n)], "float32")
        inner = "align_corners" if align_corners else "half_pixel"
        return self.node(
            "Resize",
            x,
            None,
            scales,
            sizes,
            mode=RESIZES[mode],
            coordinate_transformation_mode="asymmetric" if mode == "nearest" else inner,
            nearest_mode="floor",
            cubic_coeff_a=-0.75,
        )

    def grid_sample(
        self,
        x: Any,
        grid: Any,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> Any:
        options = {"padding_mode": padding_mode, "align_corners": int(align_corners)}
        return self.node("GridSample", x, grid, mode=GRID_MODES[mode], **options)

    def flatten(self, x: Any) -> Any:
        return self.node("Flatten", x, axis=1)

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        widths = list(zip(pad[::2], pad[1::2]))[::-1]
        widths = pads(0, x.ndim - len(widths)) + widths
        amounts = self.integers([*(before for before, _ in widths), *(behind for _, behind in widths)])
        return self.node("Pad", x, amounts, self.like(x, value), mode=PADS[mode])

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return self.node("DepthToSpace", x, blocksize=upscale_factor, mode="CRD")

    def flip(self, x: Any, dims: Any) -> Any:
        # Slices from the last element to before the first.
        axes = each(dims, 1)
        given = ([-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))
        return self.node("Slice", x, *map(self.integers, given))

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.node("Gather", weight, x)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return self.node("Add", x, self.node("Gather", weight, self.numpy.arange(x.shape[-2])))

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        return self.node("GatherElements", x, index, axis=dim)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        updates = src[tuple(slice(size) for size in index.shape)]
        return self.node("ScatterElements", x, index, updates, axis=dim, reduction="add")

    def index_select(self, x: Any, index: Any, dim: int) -> Any:
        return self.node("Gather", x, index, axis=dim)

    def topk(self, x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
        y, indices = self.node("TopK", x, self.integers([k]), n_outputs=2, axis=dim, largest=int(largest))
        return {"y": y, "indices": indices}

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        # ONNX sorts by TopK of all elements.
        return self.topk(x=x, k=x.shape[dim], dim=dim, largest=descending)

    def dropout(self, x: Any, p: float = 0.5, training: bool = False) -> Any:
        return self.node("Dropout", x, self.like(x, p), self.numpy.array(training))

    def relu(self, x: Any) -> Any:
        return self.node("Relu", x)

    def leaky_relu(self, x: Any, negative_slope: float = 0.01) -> Any:
        return self.node("LeakyRelu", x, alpha=float(negative_slope))

    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.node("Elu", x, alpha=float(alpha))

    def selu(self, x: Any) -> Any:
        return self.node("Selu", x)

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.node("Celu", x, alpha=float(alpha))

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.node("Gelu", x, approximate=approximate)

    def silu(self, x: Any) -> Any:
        return self.node("Swish", x)

    def mish(self, x: Any) -> Any:
        return self.node("Mish", x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG002 - it has none
        require(beta == 1, "ONNX's Softplus has no beta")
        return self.node("Softplus", x)

    def softsign(self, x: Any) -> Any:
        return self.node("Softsign", x)

    def hardswish(self, x: Any) -> Any:
        return self.node("HardSwish", x)

    def hardsigmoid(self, x: Any) -> Any:
        return self.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        return self.node("Clip", x, self.like(x, min_val), self.like(x, max_val))

    def clamp(self, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        return self.node("Clip", x, self.like(x, min), self.like(x, max))

    def sigmoid(self, x: Any) -> Any:
        return self.node("Sigmoid", x)

    def tanh(self, x: Any) -> Any:
        return self.node("Tanh", x)

    def exp(self, x: Any) -> Any:
        return self.node("Exp", x)

    def log(self, x: Any) -> Any:
        return self.node("Log", x)

    def sqrt(self, x: Any) -> Any:
        return self.node("Sqrt", x)

    def erf(self, x: Any) -> Any:
        return self.node("Erf", x)

    def abs(self, x: Any) -> Any:
        return self.node("Abs", x)

    def sin(self, x: Any) -> Any:
        return self.node("Sin", x)

    def cos(self, x: Any) -> Any:
        return self.node("Cos", x)

    def pow(self, x: Any, exponent: float = 2.0) -> Any:
        return self.node("Pow", x, self.like(x, exponent))

    def round(self, x: Any) -> Any:
        return self.node("Round", x)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.node("Mod", x, other, fmod=1)

    def maximum(self, x: Any, other: Any) -> Any:
        return self.node("Max", x, other)

    def minimum(self, x: Any, other: Any) -> Any:
        return self.node("Min", x, other)

    def where(self, condition: Any, x: Any, other: Any) -> Any:
        return self.node("Where", condition != 0, x, other)

    def reduced(self, kind: str, x: Any, dim: Any, keepdim: bool) -> Any:
        axes = None if dim is None else self.integers(each(dim, 1))
        return self.node(kind, x, axes, keepdims=int(keepdim))

    def sum(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceSum", x, dim, keepdim)

    def mean(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceMean", x, dim, keepdim)

    def prod(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceProd", x, dim, keepdim)

    def amax(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceMax", x, dim, keepdim)

    def amin(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceMin", x, dim, keepdim)

    def logsumexp(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.reduced("ReduceLogSumExp", x, dim, keepdim)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        require(ord in NORMS, "ONNX reduces to norms of order 1 and 2")
        return self.reduced(NORMS[ord], x, dim, keepdim)

    def cumsum(self, x: Any, dim: int = -1) -> Any:
        return self.node("CumSum", x, self.integers([dim]))

    def argmax(self, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
        return self.node("ArgMax", x, axis=dim, keepdims=int(keepdim))

    def softmax(self, x: Any, dim: int = -1) -> Any:
        return self.node("Softmax", x, axis=dim)

    def log_softmax(self, x: Any, dim: int = -1) -> Any:
        return self.node("LogSoftmax", x, axis=dim)

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        keep_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,  # noqa: ARG002 - ONNX groups the heads whenever there are fewer keys
    ) -> Any:
        mask = attn_mask if keep_mask is None else keep_mask != 0
        options = {} if scale is None else {"scale": float(scale)}
        return self.node("Attention", query, key, value, mask, is_causal=int(is_causal), **options)

    @composed
    def multi_head_attention(self, x: Any, num_heads: int, **tensors: Any) -> Any:
        n, length, _ = x.shape
        query, key, value = (
            self.projected(x, name, tensors).reshape((n, length, num_heads, -1)).swapaxes(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = self.scaled_dot_product_attention(query=query, key=key, value=value).swapaxes(1, 2)
        return self.projected(mixed.reshape((n, length, -1)), "out_proj", tensors)

    def projected(self, x: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        return self.linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))

    @composed
    def rotary_embedding(self, x: Any, base: float = 10000.0, interleaved: bool = False) -> Any:
        length, d = x.shape[-2:]
        angles = self.numpy.outer(self.numpy.arange(length), base ** -(self.numpy.arange(0, d, 2) / d))
        tables = (f(angles).astype(x.dtype)[None].repeat(len(x), 0) for f in (self.numpy.cos, self.numpy.sin))
        return self.node("RotaryEmbedding", x, *tables, interleaved=int(interleaved))

    def cross_entropy(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        require(not label_smoothing, "ONNX's SoftmaxCrossEntropyLoss has no label smoothing")
        shape, x = target.shape, x.reshape((-1, x.shape[-1]))
        options = {"ignore_index": ignore_index, "reduction": reduction}
        y = self.node("SoftmaxCrossEntropyLoss", x, target.reshape(-1), weight, **options)
        return y.reshape(shape) if reduction == "none" else y

    def nll_loss(
        self, x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> Any:
        options = {"ignore_index": ignore_index, "reduction": reduction}
        y = self.node("NegativeLogLikelihoodLoss", x.reshape((-1, x.shape[-1])), target.reshape(-1), weight, **options)
        return y.reshape(target.shape) if reduction == "none" else y

    def recurrent(self, kind: str, gates: Sequence[int], x: Any, tensors: Any, options: Any) -> Any:
        """A layer in one direction; `gates` are the positions of ONNX's gates among PyTorch's."""

        hidden_size = tensors["weight_hh"].shape[1]

        def ordered(name: str) -> Any:
            """The rows of a weight or bias by gate, or zeros."""
            rows = tensors.get(name)
            rows = self.numpy.zeros(len(gates) * hidden_size, x.dtype) if rows is None else rows
            return self.numpy.concatenate([self.numpy.split(rows, len(gates))[gate] for gate in gates])

        bias = self.numpy.concatenate([ordered("bias_ih"), ordered("bias_hh")])
        names = ("h0", "c0") if kind == "LSTM" else ("h0",)
        states = (None if tensors.get(n) is None else tensors[n].reshape((1, -1, hidden_size)) for n in names)
        given = [ordered("weight_ih")[None], ordered("weight_hh")[None], bias[None], None, *states]
        return self.node(kind, x, *given, n_outputs=len(given) - 3, hidden_size=hidden_size, **options)

    def lstm(self, x: Any, **tensors: Any) -> Any:
        y, h, c = self.recurrent("LSTM", (0, 3, 1, 2), x, tensors, {})
        return {"y": y[:, 0], "h": h[0], "c": c[0]}

    def gru(self, x: Any, **tensors: Any) -> Any:
        y, h = self.recurrent("GRU", (1, 0, 2), x, tensors, {"linear_before_reset": 1})
        return {"y": y[:, 0], "h": h[0]}
