"""The diagnoses by id: what each is, how it shows, which frameworks are known for it, and the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A diagnosis as `parity explain ID` tells it. `title` is one line, the others are sentences; `known_in` may be
    empty."""

    id: str
    title: str
    what: str
    shows: str
    known_in: str = ""
    source: str = ""


ENTRIES = (
    Entry("swapped-gradients", "gradients stand in each other's place", "", ""),
    Entry("transposed", "a matrix is used or returned transposed", "", ""),
    Entry("permuted-axes", "axes are exchanged, reversed or read in another memory order", "", ""),
    Entry("permuted-elements", "the right values in the wrong places", "", ""),
    Entry("shifted", "rolled along an axis", "", ""),
    Entry("scaled", "off by one factor", "", ""),
    Entry("sign-flipped", "the sign is the other one", "", ""),
    Entry("missing-gradient", "a gradient is zero or absent", "", ""),
    Entry("stale", "an output repeats an input", "", ""),
    Entry("detached-statistics", "the backward pass takes mean or variance for constants", "", ""),
    Entry("variance-naive", "the variance is E[x^2] - E[x]^2", "", ""),
    Entry("variance-ddof", "the normalising variance is divided by n - 1", "", ""),
    Entry("running-var-ddof", "running_var takes the biased variance", "", ""),
    Entry("momentum-complement", "momentum weighs the old statistic", "", ""),
    Entry("eps-placement", "epsilon is added outside the root", "", ""),
    Entry("eps-value", "another epsilon", "", ""),
    Entry("affine-order", "bias is added before the weight is multiplied", "", ""),
    Entry("affine-missing", "weight or bias is not applied", "", ""),
    Entry("wrong-axis", "normalised over other axes", "", ""),
    Entry("mean-vs-sum", "a mean where a sum belongs, or the reverse", "", ""),
    Entry("mean-not-subtracted", "the mean is not subtracted", "", ""),
    Entry("statistics-source", "running statistics where the batch's belong, or the reverse", "", ""),
    Entry("clip-per-tensor", "one norm for each tensor instead of one for all, or the reverse", "", ""),
    Entry("clip-denominator-eps", "another constant beside the norm in the denominator", "", ""),
    Entry("clip-by-value", "elements are clamped instead of scaled by the norm", "", ""),
    Entry("clip-by-norm", "scaled by the norm instead of clamped", "", ""),
    Entry("clip-unclamped", "small gradients are scaled up to the limit", "", ""),
    Entry("norm-type", "another norm", "", ""),
    Entry("reduced-precision", "computed in or through a format of fewer digits", "", ""),
    Entry("attribute-precision", "an attribute is kept in float32 in a float64 computation", "", ""),
    Entry("degenerate-gradient", "the exact gradient is zero: what is compared is rounding", "", ""),
    Entry("localized", "wrong in one part of the tensor only", "", ""),
    Entry("rounding", "both sides are as near to the exact answer as careful code gets", "", ""),
    Entry("not-identifiable", "several causes explain the data equally well", "", ""),
    Entry("unexplained", "no cause that was tried explains it", "", ""),
)

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in ENTRIES}
"""Every diagnosis that the judge can give, by id."""
