"""An exam of the diagnosis with runs drawn from a seed: see ``python -m exams.first``."""
