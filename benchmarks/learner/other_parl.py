"""Whether `import parl` finds PARL 2.2.1 here: its package has the name of ours (README.md has how to install it)."""


class OtherParl:
    """What PARL 2.2.1's algorithms on both frameworks begin with."""

    def __init__(self) -> None:
        import parl

        if not parl.__version__.startswith("2."):
            raise ModuleNotFoundError("`import parl` finds this project, not PARL 2.2.1; see README.md")
