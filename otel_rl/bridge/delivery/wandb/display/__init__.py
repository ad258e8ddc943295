"""Display of a run in W&B: charts, summary, tables, panels, alerts and metadata."""
