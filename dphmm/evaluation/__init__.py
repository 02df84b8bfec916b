"""Batch runs over data sets, metrics, the papers' figures."""
