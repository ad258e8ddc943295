"""The first exam as a data set for any diagnosis: see ``python -m exams.dataset``."""
