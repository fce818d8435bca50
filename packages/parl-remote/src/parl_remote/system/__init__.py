"""The operating system: descriptors, signals, processes, and how busy the host is."""
