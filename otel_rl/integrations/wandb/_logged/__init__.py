"""Values that a program logs: numbers, histograms, tables, and the rows that its calls make."""
