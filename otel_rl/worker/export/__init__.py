"""The thread that sends, the store that it empties, and a transport for each protocol."""
