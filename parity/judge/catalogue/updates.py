"""Optimizers: how a parameter is updated."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

UPDATES = (
    Entry(
        id="weight-decay-coupling",
        title="weight decay is coupled instead of decoupled, or the reverse",
        what=(
            "Coupled decay (L2) adds weight_decay * param to the gradient, so that momentum and the division by the "
            "second moment act on it; decoupled decay (AdamW) shrinks the parameter by lr * weight_decay."
        ),
        shows=(
            "The states differ, and the parameters by about lr * weight_decay * param. With a weight_decay of 0 "
            "nothing differs."
        ),
        known_in="torch.optim.Adam couples and AdamW does not; Keras decouples in all of its optimizers.",
        source="Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.",
    ),
    Entry(
        id="bias-correction",
        title="the moments are not bias-corrected",
        what=(
            "Adam divides its moments by 1 - beta^t, because they start at zero. Without it, the first steps have a "
            "different length: (1 - beta1) / sqrt(1 - beta2) times in step 1, which is 3.2 with the usual betas."
        ),
        shows="The states agree; the parameters' changes differ by a common ratio, which approaches 1 over the steps.",
        known_in="In OneFlow's Adam and LAMB it is an option, do_bias_correction.",
        source="Kingma and Ba, Adam, ICLR 2015, section 3.",
    ),
    Entry(
        id="step-offset",
        title="steps are counted from a different start",
        what=(
            "The step count starts at 0 instead of 1, or is one ahead. It enters the bias correction and the decay of "
            "the rate."
        ),
        shows=(
            "The states agree. The parameters' changes differ by a common ratio, clearly in early steps and hardly in "
            "late ones."
        ),
        source="Kingma and Ba, Adam, ICLR 2015, algorithm 1: t is incremented before it is used.",
    ),
    Entry(
        id="dampening-first-step",
        title="the first step is dampened too",
        what=(
            "PyTorch's SGD initializes its momentum buffer with the gradient itself; a buffer initialized with zeros "
            "gets (1 - dampening) times the gradient."
        ),
        shows=(
            "After step 1 the buffer is (1 - dampening) times PyTorch's, and later steps keep part of that difference."
        ),
        known_in="OneFlow 0.9.0's SGD, measured.",
        source="torch.optim.SGD's documentation, the algorithm for t = 1.",
    ),
    Entry(
        id="lr-in-momentum",
        title="the learning rate is inside the momentum buffer",
        what=(
            "PyTorch keeps v = momentum * v + g and subtracts lr * v; the other form keeps v = momentum * v + lr * g. "
            "If the rate is constant and both start at zero, the parameters are the same."
        ),
        shows="The buffers differ by the factor lr; the parameters differ from the step in which the rate changes.",
        known_in="Keras's SGD; the RMSprop of PaddlePaddle 3.3.1, measured, and of TensorFlow.",
        source="Sutskever et al., On the importance of initialization and momentum, ICML 2013, has the rate inside.",
    ),
    Entry(
        id="nesterov-form",
        title="a Nesterov step instead of plain momentum, or the reverse",
        what="Nesterov's form adds momentum times the new buffer to the gradient and steps along that sum.",
        shows="The buffers agree, the parameters do not.",
        source="Sutskever et al., On the importance of initialization and momentum, ICML 2013.",
    ),
)
