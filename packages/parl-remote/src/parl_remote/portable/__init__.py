"""What stands in for Linux's own facilities elsewhere, see `facilities`; tested on Linux with `PARL_PORTABLE=1`."""
