"""MLflow: a tracking server, or a database file."""
