"""Would the tests notice? Changes one operator, comparison, constant or branch at a time and runs the tests on it."""
