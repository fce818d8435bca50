"""`python -m parl_remote.cli`: `xparl` where scripts are not on the path."""

from parl_remote.cli import main

main(prog_name="xparl")
