"""Plots as numbers and SVG."""
