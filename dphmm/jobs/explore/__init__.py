"""A policy at work: what ``dphmm explore`` shows."""
