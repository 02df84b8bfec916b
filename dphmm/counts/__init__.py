"""Population counts over time: noise, and what known mobility repairs of it."""
