"""How it looks: summaries in, text and JSON out. Pure; nothing here computes a metric or writes to the terminal."""
