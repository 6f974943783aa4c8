"""The second part of the catalogue: conventions and algorithms of an op, each a variant of its oracle."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

CONVENTIONS = (
    Entry(
        id="detached-statistics",
        title="the backward pass takes mean or variance for constants",
        what=(
            "A normalisation's backward pass lets no gradient flow through the mean, the variance or both, as it is "
            "right for stored statistics and wrong for those of the batch. A hand-written backward easily forgets "
            "them."
        ),
        shows=(
            "Outputs and the gradients of weight and bias are right, the gradient of x is not. Its rows no longer sum "
            "to zero, and it is not orthogonal to the normalised input."
        ),
        source="S. Ioffe and C. Szegedy, Batch Normalization, 2015 (https://arxiv.org/abs/1502.03167), section 3.",
    ),
    Entry(
        id="variance-naive",
        title="the variance is E[x^2] - E[x]^2",
        what=(
            "The variance is taken as the mean of the squares minus the square of the mean, in one pass. Where the "
            "mean is large beside the spread, both terms agree in their leading digits and the difference keeps the "
            "rest."
        ),
        shows=(
            "The error grows with the square of kappa = sqrt(1 + mean^2/variance), where two passes or Welford's "
            "update grow with kappa. The variance lands on multiples of an ulp of mean^2, may be zero or negative, "
            "and the output is then NaN unless it is clamped."
        ),
        known_in=(
            "OneFlow 0.9.0: BatchNorm on a CPU (at an offset of 1e4 in float32 NaN for 1d; y off by 1.7 for 2d). "
            "PaddlePaddle 3.3.1: GroupNorm on a CPU (at 1e4, y off by more than 1e2)."
        ),
        source=(
            "T. F. Chan, G. H. Golub, R. J. LeVeque, Algorithms for Computing the Sample Variance, 1983; NNlib.jl "
            "pull request 452 (https://github.com/FluxML/NNlib.jl/pull/452); PyTorch issue 51102 "
            "(https://github.com/pytorch/pytorch/issues/51102)."
        ),
    ),
    Entry(
        id="affine-folding",
        title="weight and bias are folded into one factor and one offset",
        what=(
            "The output is computed as x*s + (b - mean*s), with s the weight over the deviation, instead of centring "
            "x first. That is one multiplication less and right in exact arithmetic, but both terms grow with the "
            "mean."
        ),
        shows=(
            "The error grows with kappa = sqrt(1 + mean^2/variance) in every element, with no shift or scale common "
            "to them; the mean and variance themselves are right."
        ),
        known_in="PaddlePaddle's BatchNorm on a CPU, and earlier releases of PyTorch's GroupNorm on a CPU.",
    ),
    Entry(
        id="variance-ddof",
        title="the normalising variance is divided by n - 1",
        what=(
            "The variance that normalises is the unbiased estimate, divided by n - 1, where the op is defined with n. "
            "Variance functions differ in this default, and a kernel put together from one inherits it."
        ),
        shows=(
            "The output is off by the factor sqrt((n-1)/n), for large variance beside eps, in every precision. Few "
            "elements per mean make it large; with n in the thousands it hides below a float32 tolerance."
        ),
        source=(
            "S. Ioffe and C. Szegedy, Batch Normalization, 2015 (https://arxiv.org/abs/1502.03167), algorithm 1; the "
            "documentation of torch.var (unbiased) and of numpy.var (biased)."
        ),
    ),
    Entry(
        id="running-var-ddof",
        title="running_var takes the biased variance",
        what=(
            "The running variance is updated with the variance divided by n in one framework and by n - 1 in another. "
            "The output in training is the same; inference after training is not."
        ),
        shows="Only running_var differs; the new part of it by the factor n/(n-1), in every precision.",
        known_in="PaddlePaddle 3.3.1 takes the biased variance; PyTorch 2.13.0 and OneFlow 0.9.0 the unbiased one.",
        source=(
            "PaddlePaddle pull request 68159 (https://github.com/PaddlePaddle/Paddle/pull/68159); PyTorch issue 19902 "
            "(https://github.com/pytorch/pytorch/issues/19902)."
        ),
    ),
    Entry(
        id="momentum-complement",
        title="momentum weighs the old statistic",
        what=(
            "PyTorch's momentum is the weight of the new statistic, (1-m)*running + m*batch; other frameworks give "
            "that name to the weight of the old one. A port that copies the number takes 0.1 for 0.9."
        ),
        shows=(
            "The output is right; running_mean and running_var are those of the momentum 1 - m, in every precision. "
            "With m = 0.5 both agree."
        ),
        known_in=(
            "No framework is wrong here: PyTorch and OneFlow weigh the new statistic (0.1), PaddlePaddle (0.9), Keras "
            "and Flax (0.99) the old one."
        ),
        source=(
            "The documentation of torch.nn.BatchNorm2d, of paddle.nn.BatchNorm2D, of keras.layers.BatchNormalization "
            "and of flax.linen.BatchNorm."
        ),
    ),
    Entry(
        id="momentum-value",
        title="another momentum",
        what=(
            "The running statistics are updated with another momentum than was asked for: a default that was not "
            "overridden, or an average over all batches. The momentum that fits is part of the evidence."
        ),
        shows=(
            "The output is right; running_mean and running_var lie between the old and the new statistic at another "
            "place, the same in every channel."
        ),
    ),
    Entry(
        id="eps-placement",
        title="epsilon is added at another place: to the root, or under it",
        what=(
            "The denominator is sqrt(v) + eps in one place and sqrt(v + eps) in another. For a large v they agree to "
            "many digits; where v is near eps or eps^2 they are far apart."
        ),
        shows=(
            "Rows of small variance are off and rows of large variance are right, in every precision. A large eps "
            "(1e-2 to 1) shows it at once."
        ),
        known_in=(
            "PyTorch Geometric's LayerNorm before July 2021 added it outside. Of RMSprop, PyTorch's adds it outside, "
            "those of TensorFlow, Keras, PaddlePaddle, OneFlow and optax inside."
        ),
        source=(
            "PyTorch Geometric pull request 2917 (https://github.com/pyg-team/pytorch_geometric/pull/2917); for large "
            "eps, OneFlow pull request 2781 (https://github.com/Oneflow-Inc/oneflow/pull/2781)."
        ),
    ),
    Entry(
        id="eps-value",
        title="another epsilon",
        what=(
            "The constant that keeps a denominator from zero is not the one that was asked for. Frameworks and models "
            "have different defaults; the value that fits is part of the evidence."
        ),
        shows=(
            "The normalised output is off by about -(difference of eps)/(2*(variance + eps)) of itself, most in rows "
            "of small variance, the same in every precision."
        ),
        known_in="The defaults of layer normalisation: PyTorch 1e-5, Keras 1e-3, Flax 1e-6, BERT 1e-12.",
        source=(
            "The documentation of torch.nn.LayerNorm, of keras.layers.LayerNormalization and of flax.linen.LayerNorm."
        ),
    ),
    Entry(
        id="affine-order",
        title="bias is added before the weight is multiplied",
        what=(
            "The bias is added first and the sum multiplied by the weight, so the bias is scaled as well. With a "
            "weight of ones, as every layer starts with, nothing can be seen."
        ),
        shows=(
            "The output is off by bias*(weight - 1), the bias gradient is multiplied by the weight, and the gradient "
            "of x is right."
        ),
    ),
    Entry(
        id="affine-missing",
        title="weight or bias is not applied",
        what=(
            "The weight, the bias or both have no effect on the output: they are not passed on, or a flag switches "
            "them off. With ones and zeros, as every layer starts with, nothing can be seen."
        ),
        shows="The output is that of the op without the parameter, and the parameter's gradient is zero or missing.",
    ),
    Entry(
        id="wrong-axis",
        title="normalised over other axes",
        what=(
            "Mean and variance are taken over other axes than the op says: the batch for the features, the channels "
            "for the positions, one axis of two. Channels-last data in a channels-first op gives the same."
        ),
        shows=(
            "Every row is off, in every precision, and the oracle over the other axes leaves rounding. The mean of "
            "the output over the right axes is not zero."
        ),
        source="Y. Wu and K. He, Group Normalization, 2018 (https://arxiv.org/abs/1803.08494), figure 2.",
    ),
    Entry(
        id="mean-vs-sum",
        title="a mean where a sum belongs, or the reverse",
        what=(
            "A reduction is divided by the number of its elements where it should not be, or is not where it should. "
            "Losses, gradients of parameters over the batch, and variances are where it happens."
        ),
        shows="The tensor is off by the number of elements that are reduced, in every precision.",
    ),
    Entry(
        id="mean-not-subtracted",
        title="the mean is not subtracted",
        what=(
            "The input is divided by its deviation without being centred, or by its root mean square, which is "
            "another op (RMSNorm). For inputs whose mean is near zero the two agree."
        ),
        shows="The output is off by the mean over the deviation, the same in each row, in every precision.",
        source=(
            "B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019 (https://arxiv.org/abs/1910.07467)."
        ),
    ),
    Entry(
        id="statistics-source",
        title="running statistics where the batch's belong, or the reverse",
        what=(
            "A normalisation in training uses the stored statistics, or one in inference uses those of the batch, or "
            "its gradient is the one of training. A mode flag that does not reach the kernel does it."
        ),
        shows=(
            "The output is that of the other mode, in every precision. Running statistics that change in inference, "
            "or do not change in training, say the same."
        ),
    ),
    Entry(
        id="clip-per-tensor",
        title="one norm for each tensor instead of one for all, or the reverse",
        what=(
            "Clipping by norm can take one norm over all gradients together or one for each. Both are offered by the "
            "frameworks and both are legal; the global one keeps the direction of the whole update."
        ),
        shows="Each tensor is off by a factor of its own, in every precision; total_norm may be right.",
        known_in=(
            "PaddlePaddle: ClipGradByNorm is per tensor, ClipGradByGlobalNorm global. Keras: clipnorm is per tensor, "
            "global_clipnorm global."
        ),
        source=(
            "The documentation of paddle.nn.ClipGradByNorm and of keras.optimizers.Optimizer; R. Pascanu, T. Mikolov, "
            "Y. Bengio, On the difficulty of training recurrent neural networks, 2013 "
            "(https://arxiv.org/abs/1211.5063)."
        ),
    ),
    Entry(
        id="clip-denominator-eps",
        title="another constant beside the norm in the denominator",
        what=(
            "The factor of clipping is max_norm/(norm + 1e-6), limited to 1, in PyTorch; others divide by the norm "
            "alone. The constant that fits is part of the evidence."
        ),
        shows=(
            "All tensors are off by one factor, about 1 - 1e-6/norm: visible in float64 and, for norms below about "
            "10, in float32 too."
        ),
        known_in=(
            "PyTorch 2.13.0 and OneFlow 0.9.0 add 1e-6, PaddlePaddle 3.3.1's ClipGradByGlobalNorm does not "
            "(0.259160505 against 0.259160528 for a first element of 3, a norm of 11.5758369 and a limit of 1)."
        ),
        source="The documentation of paddle.nn.ClipGradByGlobalNorm and the source of torch/nn/utils/clip_grad.py.",
    ),
    Entry(
        id="clip-by-value",
        title="elements are clamped instead of scaled by the norm",
        what=(
            "Every element is clamped into [-limit, limit] where the whole tensor should be scaled to a norm. The "
            "direction of the gradient changes."
        ),
        shows="Small elements are untouched and large ones stand exactly at the limit, in every precision.",
    ),
    Entry(
        id="clip-by-norm",
        title="scaled by the norm instead of clamped",
        what="The whole tensor is scaled to a norm where every element should be clamped into [-limit, limit].",
        shows="All elements are off by one factor, and none stands at the limit, in every precision.",
    ),
    Entry(
        id="clip-unclamped",
        title="small gradients are scaled up to the limit",
        what=(
            "The factor max_norm/norm is applied also where it is above 1, so gradients below the limit are enlarged "
            "to it. Clipping has become normalising."
        ),
        shows="Nothing differs where the norm is above the limit; below it all tensors are off by max_norm/norm.",
    ),
    Entry(
        id="norm-type",
        title="another norm",
        what="The norm that limits is another one than was asked for: the 1-norm, the 2-norm or the largest element.",
        shows="All tensors are off by one factor, the ratio of the two norms, and total_norm is the other norm.",
    ),
    Entry(
        id="norms-added",
        title="the norm is the sum of the tensors' norms",
        what=(
            "The norm over all gradients is taken as the sum of the norms of each. It is their norm: the root of the "
            "sum of their squares for the 2-norm."
        ),
        shows="total_norm is too large, and gradients are scaled down further, all by one factor.",
    ),
    Entry(
        id="causal-mask",
        title="a query sees only the keys up to its own place",
        what="Scores of later keys are masked, as in a decoder, where every query should see every key.",
        shows="The last query of a sequence is right, all others are off, in every precision.",
        source="A. Vaswani et al., Attention Is All You Need, 2017 (https://arxiv.org/abs/1706.03762), section 3.2.3.",
    ),
    Entry(
        id="softmax-unshifted",
        title="exp without subtracting the maximum",
        what=(
            "exp is taken of the scores themselves. That is right in exact arithmetic, but exp overflows above 88 in "
            "float32, 709 in float64 and 11 in float16, and is zero far below 0."
        ),
        shows="inf or NaN where scores are large, rounding where they are not.",
        source="P. Blanchard, D. J. Higham, N. J. Higham, Accurately computing the log-sum-exp and softmax, 2021.",
    ),
    Entry(
        id="logits-clipped",
        title="small logits are clipped",
        what=(
            "Logits are kept from lying more than a limit below the largest, so that no probability is zero and no "
            "logarithm infinite. A loss can then not exceed that limit."
        ),
        shows="The loss of targets that are almost impossible is too small, in every precision; gradients are right.",
        known_in="PaddlePaddle 3.3.1 on a CPU: shifted logits are at least -64.",
        source="paddle/phi/kernels/funcs/softmax_impl.h, ValueClip; measured with parity on a CPU.",
    ),
    Entry(
        id="label-smoothing",
        title="targets are smoothed",
        what=(
            "A part of each target is shared by all classes. The part that fits is in the evidence; losses and "
            "gradients are those of the smoothed targets."
        ),
        shows="Sure predictions cost more, and the gradients of wrong classes are smaller, in every precision.",
        source="C. Szegedy et al., Rethinking the Inception Architecture, 2016 (https://arxiv.org/abs/1512.00567).",
    ),
    Entry(
        id="broadcast-pairs",
        title="every element meets every other one",
        what=(
            "Tensors of shapes [N, 1] and [N] are combined, which broadcasts to [N, N]: N^2 differences where N are "
            "meant. Frameworks warn of it at best."
        ),
        shows="The loss is too large unless all targets are equal, and its gradient pulls towards their mean.",
        source="The warning of torch.nn.functional.mse_loss about a target of another size.",
    ),
    Entry(
        id="padding-mode",
        title="another padding than zeros",
        what=(
            "What stands around an image is its border, its mirror image or its other side, where it should be zeros; "
            "or the zeros stand behind it only."
        ),
        shows="Only what reaches over the border is off, in every precision.",
        source="The documentation of torch.nn.Conv2d, padding_mode.",
    ),
    Entry(
        id="repeated-rows",
        title="gradients of a row that is looked up twice overwrite each other",
        what=(
            "The gradient of a row is that of its last occurrence, where those of all occurrences should be added: an "
            "assignment in the place of an atomic add."
        ),
        shows="Rows that are looked up once are right, others are too small, in every precision.",
        source="The documentation of numpy.add.at, which adds where an assignment by index does not.",
    ),
    Entry(
        id="position-offset",
        title="positions are counted from another start",
        what="Rows for positions are taken from a later one on, where they should start with the first.",
        shows="All positions are off, as if the rows were shifted; gradients stand in other rows.",
        known_in="fairseq's and Hugging Face's RoBERTa start at padding_idx + 1, which is 2.",
        source="transformers, models/roberta/modeling_roberta.py, create_position_ids_from_input_ids.",
    ),
    Entry(
        id="attribute-precision",
        title="an attribute is kept in float32 where its lost digits count",
        what=(
            "A number that belongs to the op (eps, momentum, a decay rate) is stored as float32, while tensors and "
            "arithmetic are float64. 1e-5 and 0.1 are then off in the eighth digit; 1 - 0.999 is so in the fifth."
        ),
        shows=(
            "Float64 shows it: rounding the attribute to float32 in the oracle leaves rounding. It looks like another "
            "convention, since more digits do not help, but is one of precision. 1 - beta of an optimizer shows it in "
            "float32 as well."
        ),
        known_in=(
            "PaddlePaddle 3.3.1: eps of LayerNorm (0.845426069 for 0.845426066) and momentum of BatchNorm. OneFlow "
            "0.9.0: momentum of BatchNorm (running_mean off by 2.4e-4 at an offset of 1e4), lr and betas of Adam."
        ),
        source="Measured with parity on a CPU.",
    ),
)
