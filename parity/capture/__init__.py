"""What the layers of a model compute, recorded in the framework's own interpreter, on Python 3.8 and later."""
