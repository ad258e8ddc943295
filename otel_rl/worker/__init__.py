"""What runs inside training processes: instruments, buffer, encoder, exporter."""
