"""Other libraries' logging APIs, spoken by a worker: code that logs already changes one import."""
