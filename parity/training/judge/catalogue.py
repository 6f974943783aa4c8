"""Trainings: faults between the steps rather than inside a kernel."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

TRAININGS = (
    Entry(
        id="schedule-off-by-one",
        title="the schedule is one step ahead or behind",
        what=(
            "The learning rate of a step is the recipe's rate for another step. A schedule that is advanced before the "
            "optimizer step instead of after it does this, and so does one that counts from 1."
        ),
        shows=(
            "The recorded rates are the recipe's, shifted by one step. A constant rate hides it; a warm-up shows it in "
            "the first step, a step decay only at its milestones."
        ),
        known_in="PyTorch before 1.1.0 required scheduler.step() before optimizer.step(), later releases after it.",
        source="The documentation of torch.optim, 'How to adjust learning rate'.",
    ),
    Entry(
        id="warmup-boundary",
        title="the warm-up starts or ends one step off",
        what=(
            "A linear warm-up over w steps may begin at its start factor or one increment above it, and reach the full "
            "rate in step w or in step w + 1. The schedule after the warm-up may count its own steps or all of them."
        ),
        shows="The rates differ during the warm-up only, by one part in w; after it they are the recipe's.",
        source="The documentation of each framework's scheduler; there is no common convention.",
    ),
    Entry(
        id="schedule-ignored",
        title="the learning rate does not follow the schedule",
        what="The rate does not change: the schedule is never advanced, or the optimizer keeps its initial rate.",
        shows="The rate is the same in every step: that of the parameter group, or that of the schedule's first step.",
    ),
    Entry(
        id="weight-decay-excludes",
        title="weight decay is applied to parameters that are excluded from it",
        what=(
            "Biases and the weights of normalisations are usually excluded from weight decay. Here they decay like all "
            "others, or others are excluded too."
        ),
        shows=(
            "Only the parameters whose decay the recipe sets to 0 are wrong, by lr * weight_decay * param in each "
            "step. A bias that starts at zero shows it from the second step on."
        ),
        known_in=(
            "No framework is wrong here: PyTorch needs parameter groups for it, PaddlePaddle AdamW's "
            "apply_decay_param_fun."
        ),
        source="Devlin et al., BERT, 2018: AdamWeightDecayOptimizer has exclude_from_weight_decay.",
    ),
    Entry(
        id="group-options",
        title="the options of a parameter group are ignored",
        what="A parameter is updated with the options of another group: its rate, decay, betas or eps.",
        shows="Only the parameters of one group are wrong, and the options of another group leave only rounding.",
    ),
    Entry(
        id="option-value",
        title="an option has a different value",
        what=(
            "An optimizer's momentum, beta, alpha, dampening or decay, or the slope of a function, is not the "
            "config's: a framework default, an option that was not passed on, or one with a different name (PyTorch's "
            "alpha is rho elsewhere)."
        ),
        shows=(
            "One other value leaves only rounding everywhere; in a training, from the first or second step on. The "
            "evidence has that value; 0 means that the option was forgotten."
        ),
        known_in=(
            "No framework is wrong here, but defaults differ: RMSprop's alpha is 0.99 in PyTorch; PaddlePaddle calls "
            "it rho and uses 0.95. leaky_relu's slope is 0.01 in PyTorch and ONNX, 0.2 in TensorFlow and 0.3 in "
            "Keras's layer."
        ),
    ),
    Entry(
        id="accumulation-sum",
        title="gradients of micro-batches are summed instead of averaged",
        what=(
            "The gradient of a step should be the mean over its micro-batches. Calling backward on the mean loss of "
            "each of k micro-batches adds them up, k times too much; dividing twice gives 1/k of it."
        ),
        shows=(
            "Every gradient is wrong by the same factor, the number of micro-batches. Adam hides it in the parameters, "
            "since its step does not depend on the gradient's scale; clipping by norm may hide it too."
        ),
        source="The documentation of torch.amp, 'Gradient accumulation': the loss is divided by the number of batches.",
    ),
    Entry(
        id="rank-reduction",
        title="gradients or losses are summed over the ranks, or not reduced at all",
        what=(
            "Data-parallel ranks should average their gradients. Here they are summed, too large by the number of "
            "ranks, or each rank continues with the gradient of its own rows."
        ),
        shows=(
            "All gradients are wrong by the number of ranks, or equal the gradient of one rank's rows alone. A run "
            "with one process is right."
        ),
        source="The documentation of torch.nn.parallel.DistributedDataParallel: gradients are averaged over the ranks.",
    ),
    Entry(
        id="gradient-not-zeroed",
        title="the gradient of the previous step is not cleared",
        what=(
            "Gradients are added to the buffer, which was not cleared. It still holds the gradient of the previous "
            "step, or that gradient after clipping."
        ),
        shows="Step 1 is right. From step 2 on, the gradient is the exact one plus that of the previous step.",
        known_in="PyTorch, PaddlePaddle and OneFlow accumulate by design, and leave clearing to the training loop.",
        source="The documentation of torch.optim.Optimizer.zero_grad.",
    ),
    Entry(
        id="batch-order",
        title="the rows of a step are in another order, or belong to another step",
        what=(
            "The same rows come in another order, or in another step. The mean over the batch hides the order within a "
            "step; micro-batches, ranks and batch_norm do not."
        ),
        shows="The recorded rows are a permutation of the step's, or those of another step.",
        known_in="PyTorch: a DistributedSampler uses the same order in every epoch unless set_epoch is called.",
        source="The documentation of torch.utils.data.distributed.DistributedSampler.",
    ),
    Entry(
        id="repeated-data",
        title="the same rows are used again",
        what=(
            "A step uses rows that were used already: those of the previous step, or the same shard on every rank. "
            "Training continues and sees less of the data than it should."
        ),
        shows="The recorded rows repeat within the step, or are those of the previous step.",
        known_in="No framework is wrong here: in PyTorch, a loader without a DistributedSampler does it.",
        source="The documentation of torch.utils.data.distributed.DistributedSampler.",
    ),
    Entry(
        id="batch-norm-statistics",
        title="batch_norm uses running statistics, or those of each rank, in training",
        what=(
            "In training, batch_norm normalises with the mean and variance of the batch. It uses the running ones if "
            "the model was left in evaluation mode or a layer is frozen. Data-parallel ranks use those of their own "
            "rows unless batch norms are synchronised."
        ),
        shows=(
            "The model's output is wrong from the first step on, and follows exactly from the other statistics. With "
            "the running ones, gradients lack the part that flows through the statistics."
        ),
        source="Ioffe and Szegedy, Batch Normalization, ICML 2015, section 3.1.",
    ),
    Entry(
        id="activation-form",
        title="a different form of the function",
        what=(
            "GELU has an exact form with the error function and an approximation with tanh; they differ by 4.7e-4 at "
            "most. Hard sigmoid is relu6(x + 3)/6 or 0.2 x + 0.5; softplus is linear above a threshold or nowhere."
        ),
        shows="The output is wrong, for GELU by up to a few 1e-4, and the other form leaves only rounding.",
        known_in=(
            "torch.nn.GELU and paddle.nn.GELU use the error function by default; jax.nn.gelu uses tanh. ONNX's "
            "HardSigmoid has the slope 0.2. jax.nn.softplus has no threshold."
        ),
        source=(
            "Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, section 2; the documentation of "
            "torch.nn.Hardsigmoid, of torch.nn.Softplus and of ONNX HardSigmoid."
        ),
    ),
    Entry(
        id="clip-ignored",
        title="gradients are not clipped",
        what="The optimizer gets the unclipped gradients, although the recipe clips them.",
        shows="In a step whose norm exceeds the limit, the clipped gradients equal the unclipped ones.",
    ),
    Entry(
        id="clip-left-out",
        title="the norm that clips leaves out some of the parameters",
        what=(
            "The norm over all gradients is one over some of them: over matrices alone, without biases, without a "
            "layer whose gradients a loop does not see. What is left out is scaled all the same, or is not."
        ),
        shows="Where the norm is above the limit, it is too small, and all gradients that are scaled are too large.",
        source="The documentation of torch.nn.utils.clip_grad_norm_: one norm over the gradients of all parameters.",
    ),
    Entry(
        id="trust-ratio",
        title="LAMB's trust ratio is left out or computed from other tensors",
        what=(
            "LAMB scales the step of every tensor by the norm of the parameter over the norm of the step, weight decay "
            "included, and by 1 if one of them is 0. Variants leave the ratio out, compute it without the decay, or "
            "leave it out if there is no decay."
        ),
        shows="The states agree, and the change of every tensor is wrong by a factor of its own.",
        known_in="timm's LAMB leaves the ratio out if weight_decay is 0; Keras's computes it without the decay.",
        source="You et al., Large Batch Optimization for Deep Learning, ICLR 2020, algorithm 2.",
    ),
)
