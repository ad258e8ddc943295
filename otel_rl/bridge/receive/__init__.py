"""First stage of the bridge: OTLP over HTTP and gRPC in, durable batches out.

A request is checked against the limits, parsed once, stripped of refused items and handed to
``accept``. The sender gets its answer only after ``accept`` has returned.

The package exports nothing, so that a program that only reads the settings loads no server.
"""
