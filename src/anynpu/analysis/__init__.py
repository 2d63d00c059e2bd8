"""Predict, compare, profile and report: what a model does on a chip, as data and as pages."""
