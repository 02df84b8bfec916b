"""How fast the stages are; see ``scripts/benchmark --help``."""
