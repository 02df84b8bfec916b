"""Jobs about mobility models: learned, private, evaluated, sampled."""
