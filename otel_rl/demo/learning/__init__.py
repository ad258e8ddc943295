"""GRPO: loss, gradient, batches and data-parallel ranks."""
