"""Scorers in another process or at a server: clients, server, and message format."""
