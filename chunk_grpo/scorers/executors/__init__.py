"""Scorers in another process or at a server: clients, the server, and what they say to each other."""
