"""Sabotages of the package, each of which one named test must catch."""
