"""A server whose true answers are known. It shares no code with the client: neither can hide the other's faults."""
