"""Jobs that protect locations in recordings: results, sentences, sessions."""
