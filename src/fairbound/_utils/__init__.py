"""Helpers that every folder may use: pytrees, random numbers, optional imports, files, pages."""
