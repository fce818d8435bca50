"""Serialization of values, out-of-band buffers, and memory shared between processes."""
