"""What the observed tensors show, whatever the op computes."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

OBSERVATIONS = (
    Entry(
        id="reference-edit",
        title="one step differs from the reference",
        what=(
            "The reference with one step changed returns what the backend returned: a term or factor left out, another "
            "value, number or function, or a sum over something else. The expression shows the step in the names of "
            "the reference."
        ),
        shows=(
            "Every wrong tensor lies within the error bound of the changed formula. If the backend could be called "
            "again, the formula also predicts its results for other inputs."
        ),
        source="Mutation of programs: DeMillo, Lipton and Sayward, Hints on Test Data Selection (1978).",
    ),
    Entry(
        id="swapped-gradients",
        title="two gradients are exchanged",
        what=(
            "Two gradients of the same shape are right, but each is returned under the other's name, as when a "
            "backward kernel exchanges the indices of its two outputs. Training then updates the wrong parameter."
        ),
        shows=(
            "Both tensors are wrong by their own size, and exchanging them leaves only rounding. For a normalisation, "
            "the returned weight gradient equals the sum of grad_output, in float64 to the last digit."
        ),
        known_in="OneFlow before September 2021: eager LayerNorm returned the gradients of weight and bias exchanged.",
        source="OneFlow pull request 6149 (https://github.com/Oneflow-Inc/oneflow/pull/6149).",
    ),
    Entry(
        id="swapped-outputs",
        title="two outputs are exchanged",
        what=(
            "Two tensors of the same shape are right, but each is returned under the other's name: the last hidden and "
            "cell state of an LSTM, the two moments of an optimizer, a result and its gradient."
        ),
        shows="Both tensors are wrong by their own size, and exchanging them leaves only rounding.",
        known_in="Kernels that return several tensors in an order of their own.",
        source="PyTorch documentation, LSTM: the outputs are output, (h_n, c_n), in this order.",
    ),
    Entry(
        id="transposed",
        title="a matrix is used or returned transposed",
        what=(
            "A matrix is read or written with its two axes exchanged. Frameworks store a Linear weight as [out, in] or "
            "as [in, out]; a port that forgets the transpose works as long as the matrix is square."
        ),
        shows=(
            "Transposing the output, or computing the op with the transposed input, leaves only rounding. Shape checks "
            "cannot see it in a square weight; in a rectangular one it is a structural difference."
        ),
        known_in="No framework is wrong here: PyTorch stores [out, in], PaddlePaddle [in, out].",
        source="The documentation of torch.nn.Linear and of paddle.nn.Linear.",
    ),
    Entry(
        id="permuted-axes",
        title="axes are exchanged, reversed or read in another memory order",
        what=(
            "The values are right but lie along other axes: exchanged, reversed, or written in one memory order and "
            "read in another. A channels-last kernel behind a channels-first interface does this."
        ),
        shows=(
            "The sorted values of both tensors agree, and one permutation or reversal of axes leaves only rounding. If "
            "the axes have different lengths, it is a structural difference."
        ),
    ),
    Entry(
        id="permuted-elements",
        title="the right values at the wrong locations",
        what=(
            "The tensor holds the right numbers at other locations, and no permutation of whole axes explains it. An "
            "index computed from the wrong thread or block, or gates in another order, does this."
        ),
        shows=(
            "The sorted values of both tensors agree within rounding, the tensors do not. Often only the gradient of a "
            "parameter is affected, because its index is computed separately."
        ),
        known_in=(
            "DeepSpeed before January 2021: a LayerNorm backward kernel indexed weight and bias with the wrong thread "
            "axis, which corrupted the gradient of the weight."
        ),
        source="DeepSpeed pull request 692 (https://github.com/deepspeedai/DeepSpeed/pull/692).",
    ),
    Entry(
        id="shifted",
        title="shifted along an axis",
        what=(
            "The tensor is shifted along an axis by a few positions. Padding split unevenly between both ends, or a "
            "loop that starts one index too late, does this."
        ),
        shows="Rolling one axis back leaves only rounding, except at the border where other values entered.",
        known_in=(
            "No framework is wrong here: TensorFlow's SAME padding puts 2 and 3 around a kernel of 7 with stride 2, "
            "where symmetric padding puts 3 and 3."
        ),
        source="The documentation of tf.nn on SAME padding.",
    ),
    Entry(
        id="scaled",
        title="wrong by one constant factor",
        what=(
            "Every element is wrong by the same factor: a mean instead of a sum, a batch or world size, a rescaled "
            "learning rate, a doubled gradient. The factor is fitted; if it equals a size in the case, the evidence "
            "says which."
        ),
        shows=(
            "Dividing the whole tensor by one number leaves only rounding. Factors that point to a cause are n, 1/n, "
            "n/(n-1), 2, and 1 minus a momentum."
        ),
    ),
    Entry(
        id="sign-flipped",
        title="the sign is flipped",
        what=(
            "Every element has the opposite sign. A backward kernel that subtracts in the wrong order does this, and "
            "so does an update that adds instead of subtracting."
        ),
        shows=(
            "Negating the tensor leaves only rounding. Its norm is right, so a check of norms, or of means near zero, "
            "passes."
        ),
    ),
    Entry(
        id="missing-gradient",
        title="a gradient is zero or absent",
        what=(
            "A gradient that should flow is zero everywhere or is not returned. The input was detached, or the custom "
            "backward function returns nothing for it."
        ),
        shows=(
            "One gradient is all zeros although the exact one is not, while outputs and other gradients are right. A "
            "loose absolute tolerance lets this pass, so such passes are marked suspect."
        ),
    ),
    Entry(
        id="missing-output",
        title="an output is zero or absent",
        what=(
            "An output is zero everywhere or is not returned, although the exact one is not zero. A kernel that "
            "returns before it writes, or that writes into memory that is never read, does this."
        ),
        shows="One output is all zeros although the exact one is not. A loose absolute tolerance lets this pass.",
        known_in=(
            "OneFlow 0.9.0: BatchNorm in training returns zeros for a batch of one; PyTorch 2.13.0 raises an error."
        ),
        source="Measured with parity on a CPU.",
    ),
    Entry(
        id="stale",
        title="an output repeats an input",
        what=(
            "An output holds the values of an input: nothing was computed, or the result was written elsewhere. A "
            "buffer that is not updated, or an in-place operation on a copy, does this."
        ),
        shows="The output equals one of the inputs bit for bit, and the exact output does not.",
        known_in=(
            "PaddlePaddle 3.3.1: BatchNorm in training returns its input for a batch of one; PyTorch 2.13.0 raises an "
            "error there and OneFlow 0.9.0 returns zeros."
        ),
        source="Measured with parity on a CPU.",
    ),
    Entry(
        id="reduced-precision",
        title="computed in or through a lower precision",
        what=(
            "Operands, products or the whole computation pass through a format of lower precision than the dtype: TF32 "
            "or bfloat16 in matrix products, float16 under autocast, float32 inside a float64 kernel."
        ),
        shows=(
            "The error has the size of the smaller format's unit roundoff (2^-11 for TF32 and float16, 2^-8 for "
            "bfloat16, 2^-24 for float32). It vanishes if the oracle rounds its operands to that format too, or if the "
            "values are exact in it."
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
        id="narrow-accumulation",
        title="sums are accumulated in a narrow format",
        what=(
            "The running total of a sum, or of the products of a matrix multiplication, is kept in a narrow format, "
            "such as the tensors' own bfloat16. A term smaller than half an ulp of the total is lost, so a long sum "
            "stops growing. A careful implementation adds in float32 and rounds once."
        ),
        shows=(
            "The reference with such a running total returns what the backend returned; or the error, in units of that "
            "of a careful implementation, grows with the number of terms when the backend is asked with more and more."
        ),
        known_in=("PyTorch 2.13.0 on a CPU: bias and weight gradients of LayerNorm and InstanceNorm in bfloat16."),
        source=(
            "P. Blanchard et al., Mixed precision block fused multiply-add: error analysis and application to GPU "
            "tensor cores, 2020; measured with parity on a CPU."
        ),
    ),
    Entry(
        id="narrow-overflow",
        title="an intermediate result overflows a narrow format",
        what=(
            "A step's result, most often a square or a sum of squares, is kept in float16, whose largest number is "
            "65504, although the result of the op fits. A careful implementation keeps it in float32."
        ),
        shows=(
            "The reference with that step rounded to float16 has an infinity there, and returns what the backend "
            "returned: NaN, infinity, or zeros where it divides by it."
        ),
        source="P. Micikevicius et al., Mixed Precision Training, 2018 (https://arxiv.org/abs/1710.03740).",
    ),
    Entry(
        id="approximated-function",
        title="a function is approximated",
        what=(
            "A step computes another function of its operand than the reference: a polynomial or a quotient of two for "
            "exp, tanh or erf, a fast reciprocal root, a table with interpolation. The error is small and smooth, the "
            "same for the same operand everywhere, and does not shrink in a wider dtype."
        ),
        shows=(
            "One spline of the step's operand, as its error, explains at least 85 % of the error (root mean square) in "
            "the results for several inputs and options, and 75 % in the elements from which no number was taken."
        ),
        source="Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.25 to 7.1.28 (1964).",
    ),
    Entry(
        id="degenerate-gradient",
        title="the exact gradient is zero: the backends differ by rounding only",
        what=(
            "The exact gradient is zero everywhere, so every backend returns rounding error only, and comparing them "
            "compares noise. The gradient of the sum of a normalised output is an example: its terms cancel."
        ),
        shows=(
            "The oracle is zero, or far below the error of a careful implementation. The backends differ widely "
            "relative to each other, but not relative to the terms that cancel. A random grad_output removes it."
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
        id="gradient-choice",
        title="another gradient where several are right",
        what=(
            "At a kink the gradient is a choice: relu and abs at 0, clamp at its bounds, equal elements under a "
            "maximum. The backend returns another valid gradient than the oracle. Nothing needs fixing; inputs without "
            "such values avoid it."
        ),
        shows=(
            "The reference's gradient jumps at these elements when inputs move by almost nothing. The backend's lies "
            "between the limits, and sums that do not jump, such as that over equal elements, are right. All other "
            "elements are compared as usual."
        ),
        known_in="Equal elements under amax: PyTorch divides the gradient evenly.",
        source="F. H. Clarke, Generalized gradients and applications, Trans. AMS 205 (1975).",
    ),
    Entry(
        id="index-choice",
        title="another index where several are right",
        what=(
            "Where elements are equal, the order of their indices is a choice: argmax, sort and topk may return any of "
            "them. The backend returns another than the oracle, which takes equal elements in their order. Nothing "
            "needs fixing, unless the first one is promised; inputs without equal elements avoid it."
        ),
        shows="The elements at these indices equal those at the oracle's, and no index comes twice.",
        source="The documentation of torch.sort (stable), torch.topk, and of ONNX ArgMax (select_last_index).",
    ),
    Entry(
        id="param-value",
        title="a param has another value",
        what=(
            "The op is computed with another value of a param than the case gives: a default instead of what was "
            "passed, or a constant in the kernel."
        ),
        shows=(
            "With one other number in the reference, every tensor lies within the error bound. If the backend could be "
            "called again, the number also predicts its results for other inputs."
        ),
    ),
    Entry(
        id="localized",
        title="wrong in one part of the tensor only",
        what=(
            "The error lies in one row, column, channel, block or border, and the rest is right. A tail that a "
            "vectorised loop leaves out, a border with other padding, or a tie broken differently does this."
        ),
        shows=(
            "The elements that exceed the error bound share an index along an axis, or lie at its ends. The evidence "
            "says where."
        ),
        known_in=(
            "No framework is wrong at the border of average pooling: PyTorch counts the padding, PaddlePaddle "
            "(exclusive=True) and ONNX (count_include_pad=0) do not."
        ),
        source="The documentation of torch.nn.AvgPool2d, of paddle.nn.AvgPool2D and of ONNX AveragePool.",
    ),
    Entry(
        id="input-mutated",
        title="an input is overwritten",
        what=(
            "The kernel writes into a tensor that it should only read, such as an input or grad_output. Whatever reads "
            "that tensor later gets other values: the backward pass, or the next op."
        ),
        shows=(
            "After the forward and backward pass, the worker compares every input with its original values. Inputs "
            "whose new value is an output, such as running statistics, may change."
        ),
        known_in=(
            "PyTorch raises an error if a tensor that the backward pass needs is modified in place; writes through "
            ".data or in a custom kernel escape that check."
        ),
        source="The PyTorch notes on in-place correctness checks (https://pytorch.org/docs/stable/notes/autograd.html).",
    ),
    Entry(
        id="stateful",
        title="a result depends on earlier calls",
        what=(
            "The same inputs give another result after another call in the same process. Gradients accumulate in a "
            "buffer that is never cleared, or a workspace or cached value of the previous call is read again."
        ),
        shows=(
            "A call on other inputs, in the memory of the first ones, returns what an earlier call returned, or the "
            "result for a tensor of an earlier call; or a later call changes what the first one returned. Or the "
            "backend is called with A, A, B, A, A, B, A. Either every call adds the same amount to the result, or "
            "a call after B differs from one after A in the same way both times. Or, with sizes that it has not seen, "
            "the first call is right and the second is not, whichever inputs come first: something is kept by size. "
            "Or results for the same inputs repeat bit for bit in turn, or move in one direction: calls are counted. "
            "Or a wrong result that no formula without fitted numbers explains is asked for in a new process, as its "
            "first call: there it is right, or another one, while the process of the run repeats its own."
        ),
        known_in=("No framework is wrong here: PyTorch and PaddlePaddle accumulate into .grad until it is cleared."),
        source="The documentation of torch.optim.Optimizer.zero_grad.",
    ),
    Entry(
        id="nondeterministic",
        title="the same call gives different results",
        what=(
            "Repeating a call gives results that differ by more than rounding. Threads that write the same element "
            "without synchronisation do this, and so does memory that is read before it is written."
        ),
        shows=(
            "The same worker computes the same cell five times, and some elements differ by more than two error "
            "bounds. Sums whose order changes from call to call stay within the bound and are not reported."
        ),
        known_in=(
            "No framework is wrong here: PyTorch lists the CUDA ops whose atomic additions change the order of a sum."
        ),
        source="The documentation of torch.use_deterministic_algorithms.",
    ),
    Entry(
        id="batch-variant",
        title="a row depends on the other rows of the batch",
        what=(
            "A row has one result alone and another one in a batch, although the formula does not mix rows. An index "
            "that runs into the next row does this, and so does a kernel for small sizes that handles the tail of a "
            "block wrongly."
        ),
        shows=(
            "The first and the last row are computed alone and compared with their results in the batch. A row among "
            "copies of itself shows whether the values of the other rows matter, or only their number."
        ),
    ),
    Entry(
        id="layout-dependent",
        title="a result depends on how tensors lie in memory",
        what=(
            "The same numbers give another result if a tensor is not contiguous, does not start at an aligned address, "
            "or shares its memory with another input. A kernel that takes a pointer and the shape alone, and ignores "
            "strides and offset, does this; so does one that writes an output over an input it still reads."
        ),
        shows=(
            "The result is wrong with the layout of the case and right with contiguous tensors of the same numbers. "
            "Each tensor is then laid out alone, which names those that matter."
        ),
        known_in="PyTorch's guide for extensions asks for a check, or a call of .contiguous(), for this reason.",
        source="PyTorch, Custom C++ and CUDA Extensions (https://pytorch.org/tutorials/advanced/cpp_extension.html).",
    ),
    Entry(
        id="rounding",
        title="rounding: the tolerance is smaller than the rounding error of this case",
        what=(
            "The backends differ by more than the tolerance, but every error is within the error bound: less than 8 "
            "times that of a careful implementation in this dtype. Nothing needs fixing; this case needs a larger "
            "tolerance."
        ),
        shows=(
            "The error ratio of every backend is small, usually below 4. The error grows with the condition of the "
            "problem (a large offset beside the spread, the length of a sum), not with the framework."
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
            "Two or more hypotheses leave the same residual, because they compute the same thing on these inputs. "
            "Choosing one would be a guess."
        ),
        shows=(
            "The candidates are listed with what each leaves, and with an input that would distinguish them: another "
            "offset, more rows, another value of a parameter."
        ),
    ),
    Entry(
        id="unexplained",
        title="no known cause explains the error",
        what=(
            "A backend exceeds the error bound, and no transform of the tensors and no hypothesis about the op brings "
            "the error down to rounding. The finding stands; its cause is open."
        ),
        shows=(
            "The best hypothesis is shown with the error that it leaves. Usual reasons are an error in some elements "
            "only, or two faults at once."
        ),
    ),
    Entry(
        id="judge-failed",
        title="parity failed here: this is an error of parity, not of the backend",
        what=(
            "Parity itself failed while it judged this case or searched for the cause. What it had measured by then "
            "stays, tensors without a verdict are not compared, and all other cases are judged as usual. The exit code "
            "is 3 at least."
        ),
        shows=(
            "The evidence names what parity was doing, the error and its place in parity; log.txt of the run directory "
            "has the traceback. Please report it to the project that parity comes from, with log.txt, the config and "
            "the user's files that it names."
        ),
    ),
)
