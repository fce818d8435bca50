"""Replacements of Linux facilities on other systems, see `facilities`; tested on Linux with `PARL_PORTABLE=1`."""
