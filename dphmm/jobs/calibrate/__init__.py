"""The job that calibrates epsilon."""
