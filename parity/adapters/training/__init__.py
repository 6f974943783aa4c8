"""HOW a framework trains: the loop of a step in `base.py`, and what each framework brings to it."""
