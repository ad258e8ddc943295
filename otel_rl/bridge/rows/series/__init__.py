"""The series, workers, keys and devices of one experiment."""
