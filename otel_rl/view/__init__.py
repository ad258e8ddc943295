"""The page that shows runs, from their journals, without any account."""
