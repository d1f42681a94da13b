"""Sends and stamps: the only room that talks to a server."""
