"""Substitutes for Linux's own facilities on other systems, chosen by `system`; tested on Linux with `PARL_PORTABLE=1`."""
