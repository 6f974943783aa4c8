"""The base of all errors that a user can fix."""


class UserError(Exception):
    """The message says what is wrong and what to do; a command prints it and exits with 2."""
