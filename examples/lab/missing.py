"""What a laboratory lacks on this machine."""


class MissingError(Exception):
    """Something that is needed is not here, in words that say how to get it; a test skips for that reason."""
