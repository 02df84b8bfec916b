"""Temporal privacy leakage of a stream of releases."""
