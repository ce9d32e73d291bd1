"""An example of a distribution that extends turnout from outside."""
