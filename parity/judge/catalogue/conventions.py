"""Conventions and algorithms of an op, each a variant of its reference."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

CONVENTIONS = (
    Entry(
        id="detached-statistics",
        title="the backward pass treats the mean or variance as a constant",
        what=(
            "The backward pass of a normalisation lets no gradient flow through the mean, the variance or both. That "
            "is right for stored statistics and wrong for those of the batch. Hand-written backward passes often "
            "forget these terms."
        ),
        shows=(
            "Outputs and the gradients of weight and bias are right, the gradient of x is wrong: its rows do not sum "
            "to zero, or are not orthogonal to the normalised input."
        ),
        source="S. Ioffe and C. Szegedy, Batch Normalization, 2015 (https://arxiv.org/abs/1502.03167), section 3.",
    ),
    Entry(
        id="variance-naive",
        title="the variance is E[x^2] - E[x]^2",
        what=(
            "The variance is computed in one pass as the mean of the squares minus the square of the mean. If the mean "
            "is large beside the spread, the leading digits of both terms cancel, and little precision is left."
        ),
        shows=(
            "The error grows with the square of kappa = sqrt(1 + mean^2/variance); with two passes or Welford's update "
            "it grows with kappa. The variance is a multiple of an ulp of mean^2 and may be zero or negative; the "
            "output is then NaN unless the variance is clamped."
        ),
        known_in=(
            "OneFlow 0.9.0: BatchNorm on a CPU (at an offset of 1e4 in float32: NaN for 1d, an error of 1.7 in y for "
            "2d). PaddlePaddle 3.3.1: GroupNorm on a CPU (at 1e4, an error of more than 1e2 in y)."
        ),
        source=(
            "T. F. Chan, G. H. Golub, R. J. LeVeque, Algorithms for Computing the Sample Variance, 1983; NNlib.jl "
            "pull request 452 (https://github.com/FluxML/NNlib.jl/pull/452); PyTorch issue 51102 "
            "(https://github.com/pytorch/pytorch/issues/51102)."
        ),
    ),
    Entry(
        id="affine-folding",
        title="weight and bias are folded into one scale and one shift",
        what=(
            "The output is computed as x*s + (b - mean*s), with s the weight over the standard deviation, instead of "
            "centring x first. This saves a multiplication and is exact in theory, but both terms grow with the mean "
            "and cancel."
        ),
        shows=(
            "The error grows with kappa = sqrt(1 + mean^2/variance), independently in every element; the mean and the "
            "variance themselves are right."
        ),
        known_in="PaddlePaddle's BatchNorm on a CPU, and earlier releases of PyTorch's GroupNorm on a CPU.",
    ),
    Entry(
        id="variance-ddof",
        title="the variance is divided by n - 1 instead of n",
        what=(
            "The op is defined with the biased variance, divided by n; the backend normalises with the unbiased one, "
            "divided by n - 1. Variance functions differ in this default, and a kernel that calls one inherits it."
        ),
        shows=(
            "The output is wrong by the factor sqrt((n-1)/n) if the variance is large beside eps, in every precision. "
            "It is large for small n; with n in the thousands it hides below a float32 tolerance."
        ),
        source=(
            "S. Ioffe and C. Szegedy, Batch Normalization, 2015 (https://arxiv.org/abs/1502.03167), algorithm 1; the "
            "documentation of torch.var (unbiased) and of numpy.var (biased)."
        ),
    ),
    Entry(
        id="running-var-ddof",
        title="running_var is updated with the biased variance",
        what=(
            "Some frameworks update the running variance with the variance divided by n, others by n - 1. The training "
            "output is the same; inference after training is not."
        ),
        shows="Only running_var differs: its new part by the factor n/(n-1), in every precision.",
        known_in="PaddlePaddle 3.3.1 uses the biased variance; PyTorch 2.13.0 and OneFlow 0.9.0 the unbiased one.",
        source=(
            "PaddlePaddle pull request 68159 (https://github.com/PaddlePaddle/Paddle/pull/68159); PyTorch issue 19902 "
            "(https://github.com/pytorch/pytorch/issues/19902)."
        ),
    ),
    Entry(
        id="momentum-complement",
        title="momentum weights the old statistic",
        what=(
            "PyTorch's momentum is the weight of the new statistic, (1-m)*running + m*batch; in other frameworks it is "
            "the weight of the old one. A port that copies the number uses 0.1 for 0.9."
        ),
        shows=(
            "The output is right; running_mean and running_var are those for momentum 1 - m, in every precision. With "
            "m = 0.5 both agree."
        ),
        known_in=(
            "No framework is wrong here: PyTorch and OneFlow weight the new statistic (0.1), PaddlePaddle (0.9), Keras "
            "and Flax (0.99) the old one."
        ),
        source=(
            "The documentation of torch.nn.BatchNorm2d, of paddle.nn.BatchNorm2D, of keras.layers.BatchNormalization "
            "and of flax.linen.BatchNorm."
        ),
    ),
    Entry(
        id="momentum-value",
        title="a different momentum",
        what=(
            "The running statistics are updated with a different momentum than the config's: a default that was not "
            "overridden, or an average over all batches. The evidence has the momentum that fits."
        ),
        shows=(
            "The output is right; running_mean and running_var lie between the old and the new statistic, but at a "
            "different point, the same in every channel."
        ),
    ),
    Entry(
        id="eps-placement",
        title="epsilon is outside the square root instead of inside, or the reverse",
        what=(
            "The denominator is sqrt(v) + eps instead of sqrt(v + eps), or the reverse. For a large v they agree to "
            "many digits; for v near eps or eps^2 they are far apart. A norm is kept above zero by max(norm, eps), by "
            "sqrt(max(sum, eps)) or by a sum."
        ),
        shows=(
            "Rows of small variance are wrong and rows of large variance are right, in every precision. A large eps "
            "(1e-2 to 1) makes it obvious."
        ),
        known_in=(
            "PyTorch Geometric's LayerNorm before July 2021 added eps outside. PyTorch's RMSprop adds it outside; "
            "those of TensorFlow, Keras, PaddlePaddle, OneFlow and optax add it inside. PyTorch's normalize divides by "
            "max(norm, eps), OneFlow 0.9.0's by sqrt(max(sum(x^2), eps)); in PaddlePaddle 3.3.1's the norm has the "
            "derivative x/(norm + eps)."
        ),
        source=(
            "PyTorch Geometric pull request 2917 (https://github.com/pyg-team/pytorch_geometric/pull/2917); for large "
            "eps, OneFlow pull request 2781 (https://github.com/Oneflow-Inc/oneflow/pull/2781)."
        ),
    ),
    Entry(
        id="eps-value",
        title="a different epsilon",
        what=(
            "The constant that keeps a denominator from zero is not the config's. Defaults differ between frameworks "
            "and models. The evidence has the value that fits."
        ),
        shows=(
            "The relative error of the normalised output is about -(difference of eps)/(2*(variance + eps)), largest "
            "in rows of small variance, the same in every precision."
        ),
        known_in="The defaults of layer normalisation: PyTorch 1e-5, Keras 1e-3, Flax 1e-6, BERT 1e-12.",
        source=(
            "The documentation of torch.nn.LayerNorm, of keras.layers.LayerNormalization and of flax.linen.LayerNorm."
        ),
    ),
    Entry(
        id="affine-order",
        title="the bias is added before the multiplication by the weight",
        what=(
            "The bias is added first and the sum is multiplied by the weight, so the bias is scaled too. With weights "
            "of one, the initial value of every layer, there is no difference."
        ),
        shows=(
            "The output is wrong by bias*(weight - 1), the gradient of the bias is multiplied by the weight, and the "
            "gradient of x is right."
        ),
    ),
    Entry(
        id="affine-missing",
        title="weight or bias is not applied",
        what=(
            "The weight, the bias or both have no effect on the output: they are not passed on, or a flag disables "
            "them. With ones and zeros, the initial values of every layer, there is no difference."
        ),
        shows="The output is that of the op without the parameter, whose gradient is zero or missing.",
    ),
    Entry(
        id="wrong-axis",
        title="computed over the wrong axes",
        what=(
            "A reduction or the statistics of a normalisation run over the wrong axes: the batch instead of the "
            "features, the channels instead of the positions, one axis instead of two. Channels-last data in a "
            "channels-first op does the same."
        ),
        shows=(
            "Every row is wrong, in every precision, and the oracle over the other axes leaves only rounding. After a "
            "normalisation, the mean of the output over the right axes is not zero."
        ),
        source="Y. Wu and K. He, Group Normalization, 2018 (https://arxiv.org/abs/1803.08494), figure 2.",
    ),
    Entry(
        id="mean-vs-sum",
        title="a mean instead of a sum, or the reverse",
        what=(
            "A reduction is divided by the number of elements where it should not be, or is not divided where it "
            "should be. Typical for losses, for gradients of parameters over the batch, and for variances."
        ),
        shows="The tensor is wrong by the number of reduced elements, in every precision.",
    ),
    Entry(
        id="mean-not-subtracted",
        title="the mean is not subtracted",
        what=(
            "The input is divided by its standard deviation without being centred, or by its root mean square, which "
            "is another op (RMSNorm). For inputs with a mean near zero the two agree."
        ),
        shows=(
            "The output is wrong by the mean over the standard deviation, the same within each row, in every precision."
        ),
        source=(
            "B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019 (https://arxiv.org/abs/1910.07467)."
        ),
    ),
    Entry(
        id="mean-subtracted",
        title="a mean is subtracted that should stay",
        what=(
            "RMSNorm divides by the root mean square. The backend subtracts the mean first, as LayerNorm does, or "
            "divides by the standard deviation. For inputs with a mean near zero the two agree."
        ),
        shows="The rows of y have a mean of zero, or are too large, in every precision.",
        source=(
            "B. Zhang and R. Sennrich, Root Mean Square Layer Normalization, 2019 (https://arxiv.org/abs/1910.07467)."
        ),
    ),
    Entry(
        id="weight-offset",
        title="the weight is stored less one, or the reverse",
        what=(
            "Gemma's RMSNorm multiplies with 1 + weight, and its checkpoints hold weights near 0; others multiply with "
            "the weight. A checkpoint or a kernel of one kind is wrong in the other."
        ),
        shows="The output is wrong by the normalised input, in every precision; the gradient of the weight is right.",
        known_in="No framework is wrong here: Gemma and T5 differ.",
        source="transformers, models/gemma/modeling_gemma.py, GemmaRMSNorm.",
    ),
    Entry(
        id="dropout-scaling",
        title="dropout scales in evaluation",
        what=(
            "What is kept is scaled by 1/(1 - p) in training, and evaluation changes nothing; or training scales "
            "nothing, and evaluation multiplies with 1 - p. The backend scales in evaluation, where it should not."
        ),
        shows="The output in evaluation is x times 1 - p or 1/(1 - p), in every precision.",
        known_in="PaddlePaddle has both, as mode upscale_in_train (its default) and downscale_in_infer.",
        source="The documentation of paddle.nn.functional.dropout; N. Srivastava et al., Dropout, JMLR 2014.",
    ),
    Entry(
        id="statistics-source",
        title="running statistics instead of the batch's, or the reverse",
        what=(
            "A normalisation uses the stored statistics in training, or the batch's in inference, or computes the "
            "gradient of training in inference. A mode flag that does not reach the kernel does this."
        ),
        shows=(
            "The output is that of the other mode, in every precision. Running statistics that change in inference, or "
            "do not change in training, are another sign."
        ),
    ),
    Entry(
        id="clip-per-tensor",
        title="one norm per tensor instead of one global norm, or the reverse",
        what=(
            "Clipping by norm uses one norm over all gradients, or one for each tensor. Frameworks offer both, and "
            "both are legitimate; only the global norm keeps the direction of the whole update."
        ),
        shows="Each tensor is wrong by a factor of its own, in every precision; total_norm may be right.",
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
        title="a different constant is added to the norm in the denominator",
        what=(
            "PyTorch's clip factor is max_norm/(norm + 1e-6), at most 1; others divide by the norm alone. The evidence "
            "has the constant that fits."
        ),
        shows=(
            "All tensors are wrong by one factor, about 1 - 1e-6/norm: visible in float64, and in float32 for norms "
            "below about 10."
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
            "Every element is clamped to [-limit, limit], but the whole tensor should be scaled by its norm. The "
            "direction of the gradient changes."
        ),
        shows="Small elements are unchanged and large ones equal the limit exactly, in every precision.",
    ),
    Entry(
        id="clip-by-norm",
        title="scaled by the norm instead of clamped",
        what="The whole tensor is scaled by its norm, but every element should be clamped to [-limit, limit].",
        shows="All elements are wrong by one factor, and none equals the limit, in every precision.",
    ),
    Entry(
        id="clip-unclamped",
        title="small gradients are scaled up to the limit",
        what=(
            "The factor max_norm/norm is applied even if it is above 1, so gradients below the limit are scaled up to "
            "it: clipping has become normalising."
        ),
        shows="Nothing differs if the norm is above the limit; below it, all tensors are wrong by max_norm/norm.",
    ),
    Entry(
        id="norm-type",
        title="a different norm",
        what=(
            "Gradients are clipped, or rows divided, by a different norm than the config's: the 1-norm, the 2-norm or "
            "the largest element."
        ),
        shows=(
            "A norm is wrong by the ratio of the two norms; after clipping, so are all gradients, and total_norm is "
            "the other norm."
        ),
    ),
    Entry(
        id="norms-added",
        title="the total norm is the sum of the tensors' norms",
        what=(
            "The norm over all gradients is computed as the sum of the tensors' norms. It should be the norm of these: "
            "for the 2-norm, the square root of the sum of their squares."
        ),
        shows="total_norm is too large, and all gradients are scaled down too far, by one factor.",
    ),
    Entry(
        id="causal-mask",
        title="a causal mask where there should be none, or the reverse",
        what=(
            "A query sees only the keys up to its own position, as in a decoder, although it should see every key; or "
            "it sees every key although the attention is causal."
        ),
        shows="The last query of a sequence is right, all others are wrong, in every precision.",
        source="A. Vaswani et al., Attention Is All You Need, 2017 (https://arxiv.org/abs/1706.03762), section 3.2.3.",
    ),
    Entry(
        id="mask-alignment",
        title="the causal mask is shifted",
        what=(
            "A causal mask ends at another diagonal: it drops a query's own key, keeps the next one, or is aligned to "
            "the last query and the last key. PyTorch aligns to the first ones; FlashAttention from 2.1 on to the last."
        ),
        shows=(
            "With as many keys as queries, alignments agree; with more keys, all queries but the last are wrong, in "
            "every precision."
        ),
        source=(
            "The documentation of torch.nn.attention.bias, causal_upper_left and causal_lower_right; the README of "
            "FlashAttention, 2.1."
        ),
    ),
    Entry(
        id="mask-complement",
        title="the boolean mask means the opposite",
        what=(
            "True keeps a key in one function and drops it in another: scaled_dot_product_attention keeps, the key "
            "padding mask of torch.nn.MultiheadAttention drops."
        ),
        shows="Each query sees exactly the other keys, in every precision; queries that lose all keys are NaN.",
        source=(
            "The documentation of torch.nn.functional.scaled_dot_product_attention and of torch.nn.MultiheadAttention."
        ),
    ),
    Entry(
        id="mask-placement",
        title="the mask is applied at the wrong point",
        what=(
            "A mask is added to the scores before they are scaled, a boolean mask is added as 0 and 1 or multiplied "
            "with the scores, or with the probabilities after the softmax, which then do not sum to 1. It should be "
            "added to the scaled scores, a boolean one as 0 and -inf."
        ),
        shows="Masked keys keep some weight, or the others have too little, in every precision.",
        source="A. Vaswani et al., Attention Is All You Need, 2017 (https://arxiv.org/abs/1706.03762), section 3.2.3.",
    ),
    Entry(
        id="mask-ignored",
        title="the mask is not applied",
        what="The mask has no effect: it is not passed on, or the kernel that was chosen does not support it.",
        shows="The result is that without the mask, in every precision.",
    ),
    Entry(
        id="head-grouping",
        title="query heads use other key heads",
        what=(
            "With fewer key heads than query heads, neighbouring query heads share a key head (repeat_interleave). "
            "Repeating the heads as a whole (repeat, tile) pairs query head h with key head h % n."
        ),
        shows="All heads but the first are wrong unless there is one key head, in every precision.",
        source=(
            "J. Ainslie et al., GQA, 2023 (https://arxiv.org/abs/2305.13245); the documentation of "
            "torch.nn.functional.scaled_dot_product_attention, enable_gqa."
        ),
    ),
    Entry(
        id="rotary-pairs",
        title="rotary embedding pairs other features",
        what=(
            "Feature i is rotated with its neighbour (GPT-J, the original), or with feature i + d/2 (GPT-NeoX, "
            "transformers' Llama). Weights of one kind must be permuted for the other."
        ),
        shows="The first position is right and all others are wrong, in every precision; norms are right.",
        source="J. Su et al., RoFormer, 2021 (https://arxiv.org/abs/2104.09864); transformers, rotate_half.",
    ),
    Entry(
        id="rotary-angles",
        title="rotary embedding rotates by other angles",
        what=(
            "The base, the exponent or the direction of the rotation differs: base ** (-2i/d) is the frequency of pair "
            "i, and long-context models have another base. The evidence has the one that fits."
        ),
        shows="The first position is right, and the error grows with the position, in every precision.",
        source="J. Su et al., RoFormer, 2021 (https://arxiv.org/abs/2104.09864), section 3.4.2.",
    ),
    Entry(
        id="softmax-unshifted",
        title="exp without subtracting the maximum",
        what=(
            "exp is applied to the scores themselves. That is exact in theory, but exp overflows above 88 in float32, "
            "709 in float64 and 11 in float16, and underflows to zero far below 0."
        ),
        shows="Large scores give inf or NaN; others differ by rounding only.",
        source="P. Blanchard, D. J. Higham, N. J. Higham, Accurately computing the log-sum-exp and softmax, 2021.",
    ),
    Entry(
        id="online-softmax",
        title="a softmax over blocks keeps the scale of an earlier maximum",
        what=(
            "The softmax is computed block by block, relative to the largest score so far. Where a block raises it, "
            "what has been added up must be multiplied by exp(old - new): the values, or the exponentials, are not."
        ),
        shows="Queries whose largest score is in the first block are right, others are wrong in every precision.",
        source="T. Dao et al., FlashAttention, 2022 (https://arxiv.org/abs/2205.14135), algorithm 1.",
    ),
    Entry(
        id="log-of-softmax",
        title="the logarithm of a softmax",
        what=(
            "log(softmax(x)) is computed in two steps. That is exact in theory, but a probability underflows to 0 if "
            "x is more than 103 below its maximum in float32; its logarithm is -inf."
        ),
        shows="Very unlikely classes are -inf, and their gradients NaN; others differ by rounding only.",
        source="The documentation of torch.nn.functional.log_softmax.",
    ),
    Entry(
        id="logits-clipped",
        title="small logits are clipped",
        what=(
            "Logits further below the largest one than a limit are raised to it, so that no probability is zero and no "
            "logarithm infinite. The loss can then not exceed that limit."
        ),
        shows="The loss of very unlikely targets is too small, in every precision; gradients are right.",
        known_in="PaddlePaddle 3.3.1 on a CPU: shifted logits are at least -64.",
        source="paddle/phi/kernels/funcs/softmax_impl.h, ValueClip; measured with parity on a CPU.",
    ),
    Entry(
        id="label-smoothing",
        title="targets are smoothed",
        what=(
            "A part of each target is spread over all classes; losses and gradients are those of the smoothed targets. "
            "The evidence has the part that fits."
        ),
        shows=(
            "Confident predictions have a larger loss, and the gradients of wrong classes are smaller, in every "
            "precision."
        ),
        source="C. Szegedy et al., Rethinking the Inception Architecture, 2016 (https://arxiv.org/abs/1512.00567).",
    ),
    Entry(
        id="broadcast-pairs",
        title="tensors are broadcast to all pairs of elements",
        what=(
            "Tensors of shapes [N, 1] and [N] are combined and broadcast to [N, N]: N^2 differences instead of N. At "
            "best, a framework warns."
        ),
        shows="The loss is too large unless all targets are equal, and its gradient pulls towards their mean.",
        source="The warning of torch.nn.functional.mse_loss about a target of another size.",
    ),
    Entry(
        id="probability-form",
        title="logits, probabilities and their logarithms are confused",
        what=(
            "A tensor is taken for logits where it holds probabilities, for probabilities where it holds logarithms, "
            "or the reverse: a softmax or sigmoid is applied twice, or not at all. A gradient that takes the sum of a "
            "target for 1 belongs here too."
        ),
        shows=(
            "Losses and gradients are wrong in every precision, but training goes on, more slowly. Where inputs are "
            "normalised already, only the gradient differs."
        ),
        source=(
            "The documentation of torch.nn.CrossEntropyLoss (logits), torch.nn.NLLLoss (log-probabilities), "
            "torch.nn.KLDivLoss (log_target) and keras.losses (from_logits)."
        ),
    ),
    Entry(
        id="entropy-included",
        title="a divergence instead of a cross entropy, or the reverse",
        what=(
            "The entropy of the target is subtracted where it should not be, or is missing. It does not depend on the "
            "input, so trainings are the same."
        ),
        shows="The loss is wrong by the entropy of the targets, in every precision; gradients are right.",
        source="The documentation of torch.nn.KLDivLoss.",
    ),
    Entry(
        id="operands-swapped",
        title="the operands are exchanged",
        what="The first operand is taken for the second, as when a function has the target first.",
        shows="Results are those of the exchanged operands, in every precision; where these are equal, they are right.",
        known_in="keras.losses take the target first, torch.nn.functional the input.",
        source="The documentation of torch.nn.functional.kl_div and of keras.losses.kl_divergence.",
    ),
    Entry(
        id="huber-form",
        title="smooth L1 and Huber's loss are confused",
        what=(
            "The losses differ by a factor: smooth L1 divides Huber's loss by beta. For a beta of 1 they agree. The "
            "pseudo-Huber loss is a smooth approximation of the latter."
        ),
        shows="Losses and gradients are wrong by the factor beta, or around |x - target| = delta, in every precision.",
        known_in="PaddlePaddle's smooth_l1_loss is Huber's loss unless is_huber is False.",
        source="The documentation of torch.nn.SmoothL1Loss and of paddle.nn.functional.smooth_l1_loss.",
    ),
    Entry(
        id="log-floor",
        title="the logarithm of a probability has a different floor",
        what=(
            "Probabilities near 0 are clipped, or a small number is added, so that no loss is infinite. PyTorch clamps "
            "the logarithm at -100; Keras clips probabilities to 1e-7 and 1 - 1e-7, which caps a loss at 16.1."
        ),
        shows="Losses of confident mistakes are too small, or infinite, in every precision; clipped gradients are 0.",
        source="The documentation of torch.nn.BCELoss; keras.config.epsilon.",
    ),
    Entry(
        id="log-of-probability",
        title="the logarithm of a rounded probability",
        what=(
            "A softmax or sigmoid is computed first, and its logarithm then. Near 0 and 1 the probability is rounded, "
            "or underflows. The logarithm itself is a sum that loses nothing."
        ),
        shows="Digits are lost where probabilities are near 1; where one underflows, the loss is infinite.",
        source="P. Blanchard, D. J. Higham, N. J. Higham, Accurately computing the log-sum-exp and softmax, 2021.",
    ),
    Entry(
        id="ctc-blank",
        title="another class is the blank",
        what="The blank between labels is the last class instead of the first, or the reverse.",
        shows="Losses and gradients are those of other labels, in every precision.",
        known_in="torch.nn.functional.ctc_loss has 0, tf.nn.ctc_loss has the last class unless blank_index is given.",
        source="The documentation of these functions.",
    ),
    Entry(
        id="ctc-repeats",
        title="equal labels need no blank between them",
        what=(
            "An alignment may go from a label to the next one without a blank, even if both are the same class. Such "
            "alignments stand for a single label."
        ),
        shows="Only targets with a label twice in a row have a loss that is too small, in every precision.",
        source="A. Graves et al., Connectionist temporal classification, 2006, section 4.1.",
    ),
    Entry(
        id="lengths-ignored",
        title="the lengths of sequences are ignored",
        what="All steps count, also those of the padding behind the end of a sequence.",
        shows="Sequences of full length are right, all others are wrong, in every precision.",
        source="The documentation of torch.nn.functional.ctc_loss, input_lengths.",
    ),
    Entry(
        id="padding-mode",
        title="the padding has other values",
        what=(
            "An image is padded with its border, its mirror image or its opposite edge instead of zeros, or the "
            "reverse. A maximum over windows needs minus infinity: with zeros, negative values at the border are lost. "
            "Bicubic interpolation repeats the border, or leaves the weights beyond it out and scales up the others."
        ),
        shows="Only outputs whose window reaches over the border are wrong, in every precision.",
        known_in="No framework is wrong here: TensorFlow 2's and JAX's bicubic leave weights out, PyTorch's does not.",
        source=(
            "The documentation of torch.nn.Conv2d, padding_mode, of torch.nn.MaxPool2d, and of ONNX Resize, "
            "exclude_outside."
        ),
    ),
    Entry(
        id="padding-offset",
        title="the padding is split differently between both ends",
        what=(
            "Windows begin an element or more later or earlier than they should: padding that belongs before the input "
            "lies behind it, or the reverse. With an odd amount, SAME padding has to put one element more at one end."
        ),
        shows="The output is that of an input shifted along its axes, in every precision.",
        known_in=(
            "No framework is wrong here: TensorFlow's SAME padding puts 2 and 3 around a kernel of 7 with stride 2, "
            "where a padding of 3 puts 3 and 3."
        ),
        source="The documentation of tf.nn on SAME padding.",
    ),
    Entry(
        id="kernel-flipped",
        title="the kernel is flipped: a convolution instead of a correlation",
        what=(
            "The op slides the kernel as it is stored (a cross-correlation); the backend reverses its axes first, as "
            "the convolution of signal processing does."
        ),
        shows="Output and gradient of the weight are those of the reversed weight, in every precision.",
        known_in="No framework is wrong here: numpy.convolve and scipy.signal.convolve flip the kernel.",
        source="The documentation of torch.nn.Conv2d (cross-correlation) and of scipy.signal.convolve.",
    ),
    Entry(
        id="option-ignored",
        title="an option has no effect",
        what=(
            "The backend computes the op with the default of one option, such as a stride or dilation of 1, whatever "
            "the config says. A kernel that was written for the default case does this."
        ),
        shows="The output is that of the op with the default, in every precision; at the default nothing differs.",
        known_in="PaddlePaddle 3.3.1: conv2d with the padding `same` sets a dilation of 2 to 1.",
        source="paddle/phi/kernels/cpu/conv_util.h, UpdatePaddingAndDilation; measured with parity on a CPU.",
    ),
    Entry(
        id="groups-interleaved",
        title="channels take turns in the groups",
        what=(
            "Channel c belongs to group c mod groups; it should belong to group c // (channels / groups), so that a "
            "group has neighbouring channels."
        ),
        shows="With one group, or one channel per group, nothing differs; else every channel but a few is wrong.",
        source="The documentation of torch.nn.Conv2d, groups.",
    ),
    Entry(
        id="count-include-pad",
        title="an average counts the padding, or does not",
        what=(
            "The sum over a window at the border is divided by another number of elements: those of the input, those "
            "of the padding too, or those of the whole kernel where it reaches beyond the padding (ceil_mode)."
        ),
        shows="Only windows over the border are wrong, by a ratio of small whole numbers, in every precision.",
        known_in=(
            "No framework is wrong here: PyTorch counts the padding, PaddlePaddle (exclusive=True), ONNX "
            "(count_include_pad=0) and TensorFlow do not."
        ),
        source="The documentation of torch.nn.AvgPool2d, of paddle.nn.AvgPool2D and of ONNX AveragePool.",
    ),
    Entry(
        id="window-bounds",
        title="adaptive windows have other bounds",
        what=(
            "If the number of windows does not divide the length, adaptive windows overlap and differ in length: from "
            "floor(i n / m) to ceil((i + 1) n / m). The backend uses windows of one length, or windows that do not "
            "overlap."
        ),
        shows="Nothing differs if the output's size divides the input's; else windows in the middle are wrong.",
        source="The source of PyTorch, aten/src/ATen/native/AdaptivePooling.h, start_index and end_index.",
    ),
    Entry(
        id="coordinate-transform",
        title="elements of the output are mapped to other positions of the input",
        what=(
            "Elements are mapped by another rule: centres at halves (half_pixel), the same first centre (asymmetric), "
            "or the same first and last centre (align_corners). Another scale, that of the sizes for the one given, "
            "has the same effect."
        ),
        shows="On a ramp the output is wrong by (scale - 1)/2, or by an amount that grows towards one end.",
        known_in=(
            "No framework is wrong here: PyTorch and TensorFlow 2 use half_pixel; PaddlePaddle's align_mode=1, "
            "TensorFlow 1 and ONNX's asymmetric do not; PyTorch's nearest is asymmetric. In grid_sample align_corners "
            "is True by default in PaddlePaddle and False in PyTorch."
        ),
        source="ONNX Resize (coordinate_transformation_mode); the documentation of paddle.nn.functional.interpolate.",
    ),
    Entry(
        id="nearest-mode",
        title="the nearest element is rounded differently",
        what=(
            "Nearest-neighbour interpolation takes the element at or before a position (floor), or the nearest one; "
            "if two are equally near, a convention decides."
        ),
        shows="Whole elements are those of a neighbour, in every precision; for a factor of 2 most rules agree.",
        known_in="No framework is wrong here: PyTorch's nearest takes the floor, its nearest-exact and Pillow round.",
        source="The documentation of torch.nn.functional.interpolate and of ONNX Resize, nearest_mode.",
    ),
    Entry(
        id="cubic-coefficient",
        title="another coefficient of the cubic kernel",
        what="Cubic convolution has a free coefficient a: -0.75 in PyTorch, ONNX and OpenCV, -0.5 in Keys's paper.",
        shows="The error is proportional to the difference of the coefficients, and zero at the input's own elements.",
        known_in="No framework is wrong here: Pillow, TensorFlow 2 and PyTorch with antialias use -0.5.",
        source=(
            "R. Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981; the documentation of ONNX "
            "Resize, cubic_coeff_a."
        ),
    ),
    Entry(
        id="repeated-rows",
        title="values with the same index overwrite each other",
        what=(
            "The gradient of a row that is looked up twice, or a scattered value, is that of its last occurrence; it "
            "should be the sum over all occurrences. The kernel assigns instead of adding atomically."
        ),
        shows="Rows that are looked up once are right, others are too small, in every precision.",
        source="The documentation of numpy.add.at, which adds where an assignment by index does not.",
    ),
    Entry(
        id="position-offset",
        title="positions are counted from a different start",
        what="Position embeddings are taken from a later row on; they should start with the first row.",
        shows="All positions are wrong, as if the rows were shifted; gradients are in the wrong rows.",
        known_in="fairseq's and Hugging Face's RoBERTa start at padding_idx + 1, which is 2.",
        source="transformers, models/roberta/modeling_roberta.py, create_position_ids_from_input_ids.",
    ),
    Entry(
        id="index-offset",
        title="indices are counted from another origin",
        what=(
            "An index is taken, or returned, one too large or too small, as between languages that count from 0 and "
            "from 1. At the end of the axis it is clipped or wraps around."
        ),
        shows="Neighbours of the right elements are taken; returned indices are all wrong by one.",
        source="The documentation of numpy.take, mode.",
    ),
    Entry(
        id="sort-order",
        title="sorted in the other order",
        what=(
            "Values are sorted in descending instead of ascending order or the reverse, the smallest are taken instead "
            "of the largest, or the most extreme value comes last instead of first."
        ),
        shows="Values and indices are right in reverse order, or those of the other end.",
        source="The documentation of torch.sort and torch.topk.",
    ),
    Entry(
        id="padding-order",
        title="padding sizes are applied to the wrong axes or ends",
        what=(
            "A list of sizes begins with the last axis in one convention and with the first in another, and the size "
            "before an axis is exchanged with that after it."
        ),
        shows="The right values at shifted positions; with other sizes the shape differs.",
        source="The documentation of torch.nn.functional.pad (last axis first) and numpy.pad (first axis first).",
    ),
    Entry(
        id="channel-order",
        title="the channels are split in a different order",
        what=(
            "Channels become blocks of pixels. Their factors are (channel, row, column) in PyTorch and ONNX's CRD "
            "mode, (row, column, channel) in TensorFlow and ONNX's DCR mode."
        ),
        shows="The right values at other positions; with one channel in the output, both orders agree.",
        source="The documentation of ONNX's DepthToSpace, mode.",
    ),
    Entry(
        id="gate-order",
        title="the gates are stored in a different order",
        what=(
            "The rows of a recurrent layer's weights hold its gates one after the other. For an LSTM the order is i, "
            "f, g, o in PyTorch and Keras, i, o, f, g in ONNX and i, g, f, o in TensorFlow's BasicLSTMCell; for a GRU "
            "it is r, z, n in PyTorch and z, r, n in Keras and ONNX."
        ),
        shows="All states are wrong, and permuting the rows of weights and biases leaves only rounding.",
        source="The documentation of torch.nn.LSTM and torch.nn.GRU, and of ONNX's LSTM and GRU.",
    ),
    Entry(
        id="state-not-carried",
        title="a recurrent layer loses its state",
        what=(
            "The initial state is ignored, or every step begins with the initial state instead of with the state after "
            "the step before."
        ),
        shows="The first step is right and later ones are wrong, or the reverse: all but late steps are wrong.",
        source="The documentation of torch.nn.LSTM, h_0 and c_0.",
    ),
    Entry(
        id="forget-bias",
        title="1 is added to the forget gate",
        what=(
            "The forget gate begins open, by a constant that is added in the cell, or by initialising its bias. A "
            "weight that was trained with the constant lacks it elsewhere."
        ),
        shows="The cell state is wrong from the first step on, if the state before was not 0.",
        known_in="TensorFlow's BasicLSTMCell adds forget_bias=1.0; Keras initialises the bias with 1.",
        source="R. Jozefowicz et al., An Empirical Exploration of Recurrent Network Architectures, 2015.",
    ),
    Entry(
        id="gates-coupled",
        title="the forget gate is the complement of the input gate",
        what="An LSTM with coupled gates forgets 1 - i of its cell state, and has no forget gate of its own.",
        shows="All states are wrong, and the rows of the forget gate get no gradient.",
        source="K. Greff et al., LSTM: A Search Space Odyssey, 2015 (https://arxiv.org/abs/1503.04069), CIFG.",
    ),
    Entry(
        id="reset-placement",
        title="the reset gate is applied at a different point",
        what=(
            "A GRU's candidate is tanh(W x + r (U h + b)) in PyTorch and cuDNN, and tanh(W x + U (r h) + b) in the "
            "first paper and by default in ONNX. It may also be left out."
        ),
        shows="All states are wrong, and only by the candidate: with a reset gate of 1 the forms agree.",
        source="The documentation of torch.nn.GRU and of ONNX's GRU, linear_before_reset; Keras's GRU, reset_after.",
    ),
    Entry(
        id="update-complement",
        title="the update gate is exchanged with its complement",
        what="A GRU's new state is (1 - z) n + z h in PyTorch, and z n + (1 - z) h in some papers.",
        shows="All states are wrong; negating the rows of the update gate leaves only rounding.",
        source="K. Cho et al., 2014 (https://arxiv.org/abs/1406.1078), and J. Chung et al., 2014 (1412.3555).",
    ),
    Entry(
        id="rounding-mode",
        title="values are rounded to integers differently",
        what=(
            "A value halfway between two integers goes to the even one, as IEEE 754 has it by default. Others round "
            "it away from zero, as C's round does, or up, as floor(x + 0.5) does, or all values to one side."
        ),
        shows="Halves alone are wrong, by 1; with another mode, about half of all values are.",
        known_in="PyTorch 2.13.0, PaddlePaddle 3.3.1, OneFlow 0.9.0 and NumPy take the even one, as ONNX Round does.",
        source="The documentation of torch.round and of ONNX Round; C11, 7.12.9.6 (round) and 7.12.9.4 (rint).",
    ),
    Entry(
        id="remainder-sign",
        title="the quotient of a remainder is rounded differently",
        what=(
            "remainder is x - y*floor(x/y), with the sign of y; fmod is x - y*trunc(x/y), with the sign of x. Names "
            "do not say which: C's % and fmod truncate, Python's % floors, C's remainder rounds the quotient."
        ),
        shows="Elements whose operands have different signs are wrong by y; all others are right.",
        source="The documentation of torch.remainder and of torch.fmod; ONNX Mod, attribute fmod.",
    ),
    Entry(
        id="cumulative-form",
        title="a cumulative sum is exclusive or reversed",
        what=(
            "A cumulative sum includes the element itself and runs from the start. Frameworks also offer exclusive "
            "and reversed ones, and a kernel that is a backward pass of one is its reverse."
        ),
        shows="Every element is wrong by itself, or the sums are those of the reversed axis, in every precision.",
        source="The documentation of tf.math.cumsum (exclusive, reverse) and of ONNX CumSum.",
    ),
    Entry(
        id="gradient-by-division",
        title="the gradient of a product is the product divided by the factor",
        what=(
            "The gradient of a product in one of its factors is the product of the others. As the whole product "
            "divided by that factor it is 0/0 where the factor is 0."
        ),
        shows="The gradient is NaN, or 0, where a factor is 0, and right elsewhere; outputs are right.",
        known_in="PaddlePaddle 3.3.1 and OneFlow 0.9.0: prod, on a CPU.",
        source="Measured with parity on a CPU; torch/csrc/autograd/FunctionsManual.cpp, prod_backward, avoids it.",
    ),
    Entry(
        id="exp-overflow",
        title="an exponential overflows although the result does not",
        what=(
            "The function is written with an exponential that becomes infinite above 88 in float32 and 709 in float64; "
            "inf/inf or 0*inf follows. An equivalent form with exp of a negative number does not overflow."
        ),
        shows="Elements of large inputs are NaN, infinite or 0 on one side of 0; others differ by rounding only.",
        known_in=(
            "PaddlePaddle 3.3.1 on a CPU: the gradients of silu below -88 and of celu above 62 (alpha 0.7). OneFlow "
            "0.9.0 on a CPU: mish above 88, and logsigmoid below -709 in float32 too."
        ),
        source="Measured with parity on a CPU; the documentation of torch.nn.Softplus (threshold).",
    ),
    Entry(
        id="cancellation-near-0",
        title="exp(x) - 1 or log(1 + x) instead of expm1 or log1p",
        what=(
            "Near 0, exp(x) and 1 + x are nearly 1, and subtracting 1 or taking the logarithm leaves few digits. expm1 "
            "and log1p keep them."
        ),
        shows="The relative error grows as 1/|x| towards 0, where results become 0; gradients are right.",
        known_in="PaddlePaddle 3.3.1 on a CPU: elu, celu and selu; OneFlow 0.9.0 on a CPU: the same in float64.",
        source="N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 1.14.1.",
    ),
    Entry(
        id="attribute-precision",
        title="an attribute of a float64 computation is stored in float32",
        what=(
            "A number that belongs to the op (eps, momentum, a decay rate) is stored as float32, while tensors and "
            "arithmetic are float64. 1e-5 and 0.1 are then wrong in the eighth digit, 1 - 0.999 in the fifth."
        ),
        shows=(
            "Rounding the attribute to float32 in the oracle leaves only rounding, in float64. It looks like another "
            "convention, since a higher precision does not reduce the error, but the cause is precision. 1 - beta of "
            "an optimizer shows it in float32 too."
        ),
        known_in=(
            "PaddlePaddle 3.3.1: eps of LayerNorm (0.845426069 instead of 0.845426066) and momentum of BatchNorm. "
            "OneFlow 0.9.0: momentum of BatchNorm (running_mean wrong by 2.4e-4 at an offset of 1e4), lr and betas of "
            "Adam."
        ),
        source="Measured with parity on a CPU.",
    ),
)
