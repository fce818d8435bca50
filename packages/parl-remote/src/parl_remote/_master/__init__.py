"""The master: its tables, its decisions, and the loop that carries them out."""
