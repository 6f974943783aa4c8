"""The labelled benchmark of the judge: planted faults, clean kernels, and how well they are told apart and named."""
