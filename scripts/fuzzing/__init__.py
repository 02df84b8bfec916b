"""Hostile files for every reader: valid small documents, changed in their bytes and in their structure."""
