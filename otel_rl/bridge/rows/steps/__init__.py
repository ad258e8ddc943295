"""Step rows: samples with a step, and the step and pass of each worker."""
