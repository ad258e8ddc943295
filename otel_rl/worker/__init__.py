"""Code inside training processes: instruments, buffer, encoder, exporter."""
