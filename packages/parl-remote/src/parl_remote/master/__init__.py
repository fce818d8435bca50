"""The master: what it knows, what it decides, and the loop that carries it out."""
