"""Parquet files with every accepted value of each run."""
