"""The version of turnout; the one of the distribution, in ``pyproject.toml``, is the same."""

__version__ = "0.1.0"
