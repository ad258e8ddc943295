"""Room in a journal: shares of tenants, and removal of ended runs."""
