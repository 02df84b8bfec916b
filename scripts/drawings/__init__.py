"""Figures of the documentation; see ``scripts/figures --help``."""
