"""`python -m parl_evokit`: the `evokit` command."""

from parl_evokit.cli import main

main(prog_name="evokit")
