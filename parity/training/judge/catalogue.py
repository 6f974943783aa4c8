"""Entries of the catalogue about trainings: what goes wrong between the steps rather than inside a kernel."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

TRAININGS = (
    Entry(
        id="schedule-off-by-one",
        title="the schedule is a step ahead, or a step behind",
        what=(
            "The rate of step s is the one that the recipe has for another step. A schedule that is advanced before "
            "the optimizer instead of after it does this, and so does one that counts from 1."
        ),
        shows=(
            "The recorded rates are the recipe's, shifted by one step. Where the rate is constant nothing shows; a "
            "warm-up shows it in the first step, a decay by steps at each milestone only."
        ),
        known_in="PyTorch before 1.1.0 asked for scheduler.step() before optimizer.step(); since then it is after it.",
        source="The documentation of torch.optim, 'How to adjust learning rate'.",
    ),
    Entry(
        id="warmup-boundary",
        title="the warm-up counts its first or its last step otherwise",
        what=(
            "A linear warm-up over w steps may begin at its start factor, or one step up from it, and reach the full "
            "rate in step w or in step w + 1. What comes behind the warm-up counts its own steps either way."
        ),
        shows="The rates differ during the warm-up only, by one part in w; before and after they are the recipe's.",
        source="The documentation of each framework's scheduler; there is no convention that all follow.",
    ),
    Entry(
        id="schedule-ignored",
        title="the rate does not follow the schedule",
        what="The rate stays where it was: nobody moves the schedule on, or the optimizer keeps the rate of its start.",
        shows="The rate is the same in every step, that of the group or that of the schedule's first step.",
    ),
    Entry(
        id="weight-decay-excludes",
        title="parameters that should not decay do",
        what=(
            "Biases and the weights of normalisations are usually left out of weight decay. Here they decay like all "
            "others, or others are left out like them."
        ),
        shows=(
            "Only the parameters whose decay the recipe sets to 0 are off, by lr * weight_decay * param in each step. "
            "A bias that starts at zero shows it from the second step on."
        ),
        known_in=(
            "No framework is wrong here: in PyTorch it takes parameter groups, in PaddlePaddle AdamW's "
            "apply_decay_param_fun."
        ),
        source="Devlin et al., BERT, 2018: its AdamWeightDecayOptimizer takes exclude_from_weight_decay.",
    ),
    Entry(
        id="group-options",
        title="the options of a parameter group are ignored",
        what="A parameter is updated with the options of another group: its rate, decay, betas or eps.",
        shows="Only the parameters of one group are off, and the options of another group leave rounding.",
    ),
    Entry(
        id="option-value",
        title="a number of the optimizer has another value",
        what=(
            "Momentum, a beta, alpha, dampening or a decay is not what the recipe says: a default of the framework, an "
            "option that was not passed on, one that another name has (PyTorch's alpha is rho elsewhere)."
        ),
        shows=(
            "States and parameters are off from the first or second step on, and one other value leaves rounding "
            "everywhere. It is part of the evidence; 0 is an option that was forgotten."
        ),
        known_in=(
            "No framework is wrong here, but defaults differ: RMSprop's alpha is 0.99 in PyTorch, and PaddlePaddle "
            "calls it rho and has 0.95. A port that leaves options to their defaults trains otherwise."
        ),
    ),
    Entry(
        id="accumulation-sum",
        title="gradients of micro-batches are summed instead of averaged",
        what=(
            "The gradient of a step is that of the mean over its micro-batches. Calling backward on each micro-batch's "
            "mean loss adds them up, which is k times as much; dividing twice gives the k-th part."
        ),
        shows=(
            "Every gradient is off by the same factor, the number of micro-batches. Adam hides it in the parameters, "
            "since its step does not depend on the gradient's scale; clipping by norm may hide it too."
        ),
        source="The documentation of torch.amp, 'Gradient accumulation': the loss is divided by the number of batches.",
    ),
    Entry(
        id="rank-reduction",
        title="gradients or losses are summed over the ranks, or not reduced at all",
        what=(
            "Data-parallel ranks average their gradients. Here they are summed, which is as many times too much as "
            "there are ranks, or each rank goes on with the gradient of its own rows."
        ),
        shows=(
            "All gradients are off by the number of ranks, or equal the gradient of one rank's rows alone. One process "
            "is not touched."
        ),
        source="The documentation of torch.nn.parallel.DistributedDataParallel: gradients are averaged over the ranks.",
    ),
    Entry(
        id="gradient-not-zeroed",
        title="the gradient of the step before is still in it",
        what=(
            "Gradients are added to what is there, and nobody cleared it. What is left may be the gradient of the step "
            "before, or what clipping made of it."
        ),
        shows="Step 1 is right. From step 2 on, the gradient is the exact one plus that of the step before.",
        known_in="PyTorch, PaddlePaddle and OneFlow accumulate by design, and leave clearing to the training loop.",
        source="The documentation of torch.optim.Optimizer.zero_grad.",
    ),
    Entry(
        id="batch-order",
        title="the rows of a step are in another order, or those of another step",
        what=(
            "The same rows come in another order, or at another step. Within a step the mean over the batch hides it; "
            "with micro-batches, ranks or batch_norm it does not."
        ),
        shows="The recorded rows are a permutation of those of the step, or those of another step.",
        known_in="PyTorch: a DistributedSampler whose set_epoch is not called gives every epoch the same order.",
        source="The documentation of torch.utils.data.distributed.DistributedSampler.",
    ),
    Entry(
        id="repeated-data",
        title="the same rows are used again",
        what=(
            "A step takes rows that were used already: those of the step before, or every rank reads the same shard. "
            "The training goes on and sees less of the data than it should."
        ),
        shows="The recorded rows repeat within the step, or are those of the step before.",
        known_in="No framework is wrong here: in PyTorch, a loader without a DistributedSampler does it.",
        source="The documentation of torch.utils.data.distributed.DistributedSampler.",
    ),
    Entry(
        id="batch-norm-statistics",
        title="batch_norm takes running statistics, or each rank's own, in training",
        what=(
            "In training, batch_norm normalises with the mean and variance of the batch. Taking the running ones, as "
            "in evaluation, means that the model was left in its evaluation mode, or a layer of it was frozen. "
            "Data-parallel ranks take those of their own rows, unless their batch norms are synchronised."
        ),
        shows=(
            "The output of the step is off from the first step on, and follows from the other statistics exactly. With "
            "the running ones, gradients lack the part that goes through the statistics."
        ),
        source="Ioffe and Szegedy, Batch Normalization, ICML 2015, section 3.1.",
    ),
    Entry(
        id="activation-form",
        title="another form of the activation function",
        what="GELU has an exact form with the error function and an approximation with tanh, 4.7e-4 apart at most.",
        shows="The output is off by up to some 1e-4, and the other form leaves rounding.",
        known_in="torch.nn.GELU and paddle.nn.GELU take the error function by default; jax.nn.gelu takes tanh.",
        source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, section 2.",
    ),
    Entry(
        id="clip-ignored",
        title="gradients are not clipped",
        what="The optimizer gets the gradients as they are, although the recipe clips them.",
        shows="Clipped gradients equal the unclipped ones in a step in which the norm is above the limit.",
    ),
    Entry(
        id="trust-ratio",
        title="LAMB's trust ratio is left out, or taken of something else",
        what=(
            "LAMB scales the step of every tensor by the norm of the parameter over that of the step, weight decay "
            "included, and by 1 where one of them is 0. Variants leave the ratio out, take it without the decay, or "
            "leave it out where there is no decay."
        ),
        shows="The states agree, and the change of every tensor is off by a factor of its own.",
        known_in="timm's LAMB leaves the ratio out where weight_decay is 0; Keras's takes it without the decay.",
        source="You et al., Large Batch Optimization for Deep Learning, ICLR 2020, algorithm 2.",
    ),
)
