"""Figures of the documentation. See ``scripts/figures --help``."""
