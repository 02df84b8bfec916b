"""Symmetric convex bodies and sets of measured points; no graph in sight."""
