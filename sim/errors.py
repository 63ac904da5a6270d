"""The two ways an answer can fail, as exceptions the command line turns into one line on stderr."""


class SimctlError(Exception):
    """The input was well formed but the model or a check says no. Exit code 1."""

    exit_code = 1


class UsageError(SimctlError, ValueError):
    """The input itself is wrong (unknown name, absurd number, malformed file). Exit code 2."""

    exit_code = 2
