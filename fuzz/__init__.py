"""Readers of what others wrote, under random bytes: `make fuzz`."""
