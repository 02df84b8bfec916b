"""The figures of the documentation; see ``scripts/figures --help``."""
