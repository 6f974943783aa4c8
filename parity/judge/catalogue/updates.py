"""Entries of the catalogue about optimizers: how a parameter is updated."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

UPDATES = (
    Entry(
        id="weight-decay-coupling",
        title="weight decay is coupled (in the gradient) instead of decoupled, or not",
        what=(
            "Coupled decay (L2) adds weight_decay * param to the gradient, so that momentum and the division by the "
            "second moment act on it; decoupled decay (AdamW) shrinks the parameter by lr * weight_decay."
        ),
        shows=(
            "The states differ, and the parameters by about lr * weight_decay * param. A weight_decay of 0 shows "
            "nothing."
        ),
        known_in="torch.optim.Adam couples and AdamW does not; Keras decouples in all of its optimizers.",
        source="Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019.",
    ),
    Entry(
        id="bias-correction",
        title="the moments are not corrected for their start at zero",
        what=(
            "Adam divides its moments by 1 - beta^t, because they start at zero. Without that the first steps have "
            "another length: by (1 - beta1) / sqrt(1 - beta2) in step 1, 3.2 times too long with the usual betas."
        ),
        shows="The states agree, the parameters' changes have a common ratio, which goes to 1 as the steps go on.",
        known_in="OneFlow's Adam and LAMB have it as an option, do_bias_correction.",
        source="Kingma and Ba, Adam, ICLR 2015, section 3.",
    ),
    Entry(
        id="step-offset",
        title="the steps are counted from another start",
        what="A count that begins at 0 instead of 1, or is one ahead, enters the bias correction and the rate's decay.",
        shows="Early steps differ by a common ratio in the parameters' changes, late ones hardly; the states agree.",
        source="Kingma and Ba, Adam, ICLR 2015, algorithm 1: t is raised before it is used.",
    ),
    Entry(
        id="dampening-first-step",
        title="the first step is dampened too",
        what=(
            "PyTorch's SGD starts its momentum buffer with the gradient itself; a buffer that starts with zeros takes "
            "(1 - dampening) of it."
        ),
        shows="After step 1 the buffer is (1 - dampening) of PyTorch's, and later steps carry a part of that on.",
        known_in="OneFlow 0.9.0's SGD, measured.",
        source="torch.optim.SGD's documentation, its algorithm for t = 1.",
    ),
    Entry(
        id="lr-in-momentum",
        title="the learning rate is inside the momentum buffer",
        what=(
            "PyTorch keeps v = momentum * v + g and takes lr * v off; the other form keeps v = momentum * v + lr * g. "
            "Where the rate is constant and both start at zero, the parameters are the same."
        ),
        shows="The buffers differ by the factor lr; the parameters do from the step on in which the rate changes.",
        known_in="Keras's SGD; the RMSprop of PaddlePaddle 3.3.1, measured, and of TensorFlow.",
        source="Sutskever et al., On the importance of initialization and momentum, ICML 2013, has the rate inside.",
    ),
    Entry(
        id="nesterov-form",
        title="a Nesterov step on one side, plain momentum on the other",
        what="Nesterov's form adds momentum times the new buffer to the gradient and steps by that.",
        shows="The buffers agree, the parameters do not.",
        source="Sutskever et al., On the importance of initialization and momentum, ICML 2013.",
    ),
)
