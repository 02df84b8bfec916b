"""Benchmarks of the stages. See ``scripts/benchmark --help``."""
