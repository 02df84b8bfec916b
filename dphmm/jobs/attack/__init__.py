"""Jobs that attack obfuscated tracks and tables of counts."""
