"""Whole data sets through policies, mechanisms and budgets: the paper's evaluation (Section 8), and batch releases."""
