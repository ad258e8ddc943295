"""The series, workers, keys and GPUs of one experiment."""
