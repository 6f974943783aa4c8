"""What plots show, as numbers and SVG."""
