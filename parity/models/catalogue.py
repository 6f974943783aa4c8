"""Models: faults between layers, and in how layers are set up."""

from __future__ import annotations

from parity.judge.catalogue.entry import Entry

MODELS = (
    Entry(
        id="layer-options",
        title="the two layers have different options",
        what=(
            "A layer and its partner in the other port are built with other options: eps, the form of an activation, "
            "a stride, or training instead of evaluation mode."
        ),
        shows=(
            "Given the same inputs, the layers return different tensors, and the layer's reference with the other "
            "port's options gives what that port returned."
        ),
        known_in=(
            "No framework is wrong here; defaults differ: LayerNorm's eps is 1e-5 in PyTorch and PaddlePaddle, 1e-3 in "
            "Keras, and 1e-12 in BERT."
        ),
        source="The documentation of each framework's layers.",
    ),
    Entry(
        id="layer-code",
        title="the code between two layers differs",
        what=(
            "The layers of both ports agree, but a layer's own code combines their outputs differently: another "
            "operand, order, scale, mask or position."
        ),
        shows=(
            "With all inputs and outputs of layers taken from the other port, one tensor still differs: the input of "
            "a layer, or the output of the layer around it."
        ),
    ),
    Entry(
        id="weights-differ",
        title="a parameter has other values",
        what=(
            "The ports were compared with their own weights (weights: own), and one parameter differs: its layer was "
            "not loaded, for example, or its matrix is transposed."
        ),
        shows="The values of the parameter differ by more than a cast; everything after the layer differs, too.",
    ),
    Entry(
        id="weights-untied",
        title="two parameters share their memory in one port only",
        what="A classifier that uses the embedding's matrix, for example, has a matrix of its own in the other port.",
        shows=(
            "With the same values the outputs agree, but the gradients do not: the shared parameter's gradient is the "
            "sum of the other port's two. An optimizer lets the two parameters drift apart."
        ),
    ),
)
