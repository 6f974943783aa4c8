"""The first part of the catalogue: what can be told from the observed tensors, whatever the op computes."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

OBSERVATIONS = (
    Entry(
        id="reference-edit",
        title="one step is computed otherwise than in the reference",
        what=(
            "A formula with one step changed gives what the backend returned: a term or a factor left out, another "
            "value in its place, another number, another function, a sum over something else. The expression says "
            "which step, in the names of the reference."
        ),
        shows=(
            "Every wrong tensor lies within the error bound of the changed formula. Where the backend could be asked "
            "again, the formula also predicts what it returned for other inputs."
        ),
        source="Mutation of programs: DeMillo, Lipton and Sayward, Hints on Test Data Selection (1978).",
    ),
    Entry(
        id="swapped-gradients",
        title="gradients stand in each other's place",
        what=(
            "Two gradients of the same shape are right, but each is returned under the other's name. A backward "
            "kernel with two outputs whose indices are exchanged does this; training then moves the wrong parameter."
        ),
        shows=(
            "Both tensors are wrong by their own size, and exchanging them leaves rounding. For a normalisation the "
            "'weight gradient' equals the sum of the upstream gradient, in float64 to the last digits."
        ),
        known_in="OneFlow before September 2021: eager LayerNorm returned the gradients of weight and bias exchanged.",
        source="OneFlow pull request 6149 (https://github.com/Oneflow-Inc/oneflow/pull/6149).",
    ),
    Entry(
        id="transposed",
        title="a matrix is used or returned transposed",
        what=(
            "A matrix is read or written with its two axes exchanged. Frameworks store a Linear weight either as "
            "[out, in] or as [in, out], and a port that forgets the transpose works as long as the matrix is square."
        ),
        shows=(
            "A transposed output, or the op computed with the transposed input, leaves rounding. A square weight "
            "hides it from every shape check, a rectangular one is a structural difference."
        ),
        known_in="No framework is wrong here: PyTorch stores [out, in], PaddlePaddle [in, out].",
        source="The documentation of torch.nn.Linear and of paddle.nn.Linear.",
    ),
    Entry(
        id="permuted-axes",
        title="axes are exchanged, reversed or read in another memory order",
        what=(
            "The values are right, but along other axes: exchanged, reversed, or written in one memory order and read "
            "in the other. A channels-last kernel behind a channels-first interface does it."
        ),
        shows=(
            "The sorted values of both sides agree, and one permutation or reversal of axes leaves rounding. Axes of "
            "different lengths turn it into a structural difference."
        ),
    ),
    Entry(
        id="permuted-elements",
        title="the right values in the wrong places",
        what=(
            "The tensor holds the right numbers at other positions, and no permutation of whole axes explains how. An "
            "index computed from the wrong thread or block, or gates in another order, does it."
        ),
        shows=(
            "The sorted values of both sides agree within rounding, the tensors do not. Often it is the gradient of a "
            "parameter only, because only there is the index computed apart."
        ),
        known_in=(
            "DeepSpeed before January 2021: a LayerNorm backward kernel read weight and bias with the index of the "
            "wrong thread axis, which spoilt the weight's gradient."
        ),
        source="DeepSpeed pull request 692 (https://github.com/deepspeedai/DeepSpeed/pull/692).",
    ),
    Entry(
        id="shifted",
        title="rolled along an axis",
        what=(
            "The tensor is displaced along an axis by a few positions. Padding that is split unevenly between both "
            "ends, or a loop that starts one too late, does it."
        ),
        shows="Rolling one axis back leaves rounding, but for the border where values entered.",
        known_in=(
            "No framework is wrong here: TensorFlow's SAME padding puts 2 and 3 around a kernel of 7 with stride 2, "
            "where symmetric padding puts 3 and 3."
        ),
        source="The documentation of tf.nn on SAME padding.",
    ),
    Entry(
        id="scaled",
        title="off by one factor",
        what=(
            "Every element is off by the same factor: a mean for a sum, a batch or world size, a rescaled learning "
            "rate, a doubled gradient. The factor is fitted, and named where it is the size of something."
        ),
        shows=(
            "Dividing by one number leaves rounding in the whole tensor. The factor is telling where it is n, 1/n, "
            "n/(n-1), 2, or 1 minus a momentum."
        ),
    ),
    Entry(
        id="sign-flipped",
        title="the sign is the other one",
        what=(
            "Every element has the opposite sign. A backward kernel that subtracts in the other order does it, and so "
            "does an update that adds where it should subtract."
        ),
        shows=(
            "Negating the tensor leaves rounding. Its norm is right, so a check of norms or of means near zero passes."
        ),
    ),
    Entry(
        id="missing-gradient",
        title="a gradient is zero or absent",
        what=(
            "A gradient that should flow is zero everywhere, or is not returned. The input was detached, or the "
            "custom backward function returns nothing for it."
        ),
        shows=(
            "One gradient is all zeros where the exact one is not, while outputs and the other gradients are right. A "
            "loose absolute tolerance lets it pass, which is why such passes are marked suspect."
        ),
    ),
    Entry(
        id="missing-output",
        title="an output is zero or absent",
        what=(
            "An output is zero everywhere, or is not returned, where the exact one is not. A kernel that returns "
            "before it writes, or writes into memory that nobody reads, does it."
        ),
        shows="One output is all zeros where the exact one is not; a loose absolute tolerance lets it pass.",
        known_in=(
            "OneFlow 0.9.0: BatchNorm in training returns zeros for a batch of one, where PyTorch 2.13.0 raises an "
            "error."
        ),
        source="Measured with parity on a CPU.",
    ),
    Entry(
        id="stale",
        title="an output repeats an input",
        what=(
            "An output holds the values of an input: nothing was computed, or the result was written elsewhere. A "
            "buffer that is not updated, and an in-place operation on a copy, look like this."
        ),
        shows="The output equals one of the inputs bit for bit, where the exact answer does not.",
        known_in=(
            "PaddlePaddle 3.3.1: BatchNorm in training returns its input for a batch of one; PyTorch 2.13.0 raises an "
            "error there and OneFlow 0.9.0 returns zeros."
        ),
        source="Measured with parity on a CPU.",
    ),
    Entry(
        id="reduced-precision",
        title="computed in or through a format of fewer digits",
        what=(
            "Operands, products or the whole computation pass through a format with fewer digits than the dtype: TF32 "
            "or bfloat16 in matrix products, float16 under autocast, float32 inside a float64 kernel."
        ),
        shows=(
            "The error has the size of the smaller format's unit roundoff (2^-11 for TF32 and float16, 2^-8 for "
            "bfloat16, 2^-24 for float32). It vanishes when the oracle rounds its operands to that format too, or the "
            "values lie on its grid."
        ),
        known_in=(
            "MindSpore 2.10.0, MLX 0.32.4 on a CPU, and Keras 3.15.1 on jax, torch and numpy return float64 tensors "
            "with float32 accuracy."
        ),
        source=(
            "Measured on a CPU; for TF32, the PyTorch notes on numerical accuracy "
            "(https://pytorch.org/docs/stable/notes/numerical_accuracy.html)."
        ),
    ),
    Entry(
        id="degenerate-gradient",
        title="the exact gradient is zero: what is compared is rounding",
        what=(
            "The exact gradient is zero everywhere, so what the sides return is rounding error only, and comparing it "
            "compares noise. The gradient of the sum of a normalised output is such a case: its parts cancel."
        ),
        shows=(
            "The oracle is zero, or far below what careful code loses; the sides differ wildly relative to each "
            "other, and not at all relative to the terms that cancel. A random upstream gradient removes it."
        ),
        known_in=(
            "Any framework. For the sum of LayerNorm's output over [-1.83965693, -1.82964566] in float32, "
            "PaddlePaddle 3.3.1 and OneFlow 0.9.0 return about 1.4e-3, PyTorch 2.13.0 returns 0."
        ),
        source=(
            "OneFlow pull request 6149 (https://github.com/Oneflow-Inc/oneflow/pull/6149) and OneFlow issue 6526 "
            "(https://github.com/Oneflow-Inc/oneflow/issues/6526)."
        ),
    ),
    Entry(
        id="localized",
        title="wrong in one part of the tensor only",
        what=(
            "All that is wrong lies in one row, column, channel, block or border, and the rest is right. A tail that "
            "a vectorised loop leaves out, a border with other padding, or a tie broken otherwise does it."
        ),
        shows=(
            "The elements outside rounding share an index along an axis, or lie at its ends. The evidence says where."
        ),
        known_in=(
            "No framework is wrong in average pooling's border: PyTorch counts the padding, PaddlePaddle "
            "(exclusive=True) and ONNX (count_include_pad=0) do not."
        ),
        source="The documentation of torch.nn.AvgPool2d, of paddle.nn.AvgPool2D and of ONNX AveragePool.",
    ),
    Entry(
        id="input-mutated",
        title="an input is overwritten",
        what=(
            "The kernel writes into a tensor that it should only read, such as an input or an upstream gradient. "
            "Whatever reads that tensor later gets other values: the backward pass, or the next op."
        ),
        shows=(
            "The worker compares every input with what it read, after the forward and backward pass. Inputs that have "
            "a new value among the outputs, such as running statistics, may change."
        ),
        known_in=(
            "PyTorch raises an error where a tensor that the backward pass needs is modified in place; writes through "
            ".data or in a custom kernel escape that check."
        ),
        source="The PyTorch notes on in-place correctness checks (https://pytorch.org/docs/stable/notes/autograd.html).",
    ),
    Entry(
        id="stateful",
        title="a result depends on earlier calls",
        what=(
            "The same inputs give another result after another call in the same process. Gradients are accumulated "
            "into a buffer that nobody clears, or a workspace or a cached value of the previous call is read again."
        ),
        shows=(
            "The backend is asked A, A, B, A, A, B, A. Either every call adds the same to the result, or a call after "
            "B differs from one after A in the same way both times."
        ),
        known_in=("No framework is wrong here: PyTorch and PaddlePaddle accumulate into .grad until it is cleared."),
        source="The documentation of torch.optim.Optimizer.zero_grad.",
    ),
    Entry(
        id="nondeterministic",
        title="the same call gives different results",
        what=(
            "Repeating a call gives values further apart than rounding. Threads that write the same element without "
            "synchronisation do it, and so does memory that is read before it is written."
        ),
        shows=(
            "The same cell is asked five times of the same worker, and some elements differ by more than two error "
            "bounds. Sums whose order changes from run to run stay within the bound and are not reported."
        ),
        known_in=(
            "No framework is wrong here: PyTorch lists the CUDA ops whose atomic additions change the order of a sum."
        ),
        source="The documentation of torch.use_deterministic_algorithms.",
    ),
    Entry(
        id="batch-variant",
        title="a row depends on the rows beside it",
        what=(
            "A row has one result alone and another one in a batch, although the formula has nothing that mixes rows. "
            "An index that runs into the next row does it, and so does a kernel for small sizes that handles the tail "
            "of a block wrongly."
        ),
        shows=(
            "The first and the last row are asked alone, and compared with what they are in the batch. A row among "
            "copies of itself tells whether the values of its neighbours matter, or only how many they are."
        ),
    ),
    Entry(
        id="rounding",
        title="no side is off: the tolerance asks for more digits than there are",
        what=(
            "The sides differ by more than the tolerance, and the error of both is less than 8 times that of careful "
            "code in this dtype: the tolerance asks for more digits than there are. Nothing needs fixing."
        ),
        shows=(
            "Every side's error ratio is small, below about 4. The error grows with the condition of the problem (an "
            "offset beside the spread, the length of a sum), and not with the framework."
        ),
        known_in=(
            "Any framework. For Linear 768x768 with weights N(0, 1) and inputs 10 N(0, 1) in float32, PyTorch 2.13.0, "
            "PaddlePaddle 3.3.1 and OneFlow 0.9.0 are 3e-4 to 7e-4 from the exact answer, whose standard deviation is "
            "280."
        ),
        source="N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, SIAM 2002, chapters 2 to 4.",
    ),
    Entry(
        id="not-identifiable",
        title="several causes explain the data equally well",
        what=(
            "Two or more hypotheses leave the same residual, because on these inputs they compute the same thing. "
            "Choosing one of them would be a guess."
        ),
        shows=(
            "The candidates are listed with what each leaves, and with the input that would tell them apart: another "
            "offset, more rows, another value of a parameter."
        ),
    ),
    Entry(
        id="unexplained",
        title="no cause that was tried explains it",
        what=(
            "A side is off, and neither a transform of the tensors nor a hypothesis about the op brings the error "
            "down to rounding. The finding stands; only its cause is open."
        ),
        shows=(
            "The best hypothesis is shown with what it leaves. An error in some elements only, or two faults at once, "
            "are the usual reasons."
        ),
    ),
)
