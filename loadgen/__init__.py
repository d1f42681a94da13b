"""loadgen: an asynchronous load-generation client for LLM inference endpoints."""

__version__ = "0.1.0"
