"""Open steps and phases of each thread and task, with their exclusive times."""
