"""Protected zones in recordings, the inference of adversaries, and files of recordings."""
