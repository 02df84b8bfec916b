"""What must stay indistinguishable: policy graphs, degrees of protection, repairs."""
