"""`python -m parl_core.cli` is the `parl` command."""

from parl_core.cli import main

main()
