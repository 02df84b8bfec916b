"""Findings as an HTML page of one file."""

from dphmm.reports.page import Cell, Picture, Section, html_page

__all__ = ["Cell", "Picture", "Section", "html_page"]
