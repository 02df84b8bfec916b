"""Reports: one builder of HTML pages."""
