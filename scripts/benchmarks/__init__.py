"""Benchmarks of the stages; see ``scripts/benchmark --help``."""
