"""Boards: methods x problems, scored, ranked and shown."""
