"""Budgets that protect significant timestamps."""
