"""Helpers that every folder may use: random numbers, optional imports, files, pages."""
