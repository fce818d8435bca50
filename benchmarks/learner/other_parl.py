"""A check that `import parl` finds PARL 2.2.1, whose package has the same name as ours (README.md: installation)."""


class OtherParl:
    """Base of PARL 2.2.1's algorithms on both frameworks; rejects another PARL."""

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise ModuleNotFoundError("PARL 2.2.1 is measured on the CPU only")
        import parl

        if not parl.__version__.startswith("2."):
            raise ModuleNotFoundError("`import parl` finds this project, not PARL 2.2.1; see README.md")
