"""Values on their way: pickles, what lies beside them, and memory that processes share."""
