"""This client beside the released ones, under one load, against one server whose every send time is known."""
