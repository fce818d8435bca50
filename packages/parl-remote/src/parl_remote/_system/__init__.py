"""Access to the operating system: descriptors, signals, processes, and the load of the host."""
