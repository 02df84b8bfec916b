"""Fuzzing of every reader with small valid documents, mutated in bytes and structure."""
