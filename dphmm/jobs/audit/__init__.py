"""Jobs that audit policies, mechanisms and releases."""
