"""One file a family of verbs: flags → values → call → print → exit code."""
