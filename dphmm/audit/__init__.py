"""What a policy exposes, and what the noise really gives."""
