"""The vocabulary: names, instruments, units and reductions, generated from ``registry/*.yaml``."""
