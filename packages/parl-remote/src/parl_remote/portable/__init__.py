"""Substitutes for Linux's own facilities elsewhere, chosen by `system`; tested on Linux with `PARL_PORTABLE=1`."""
