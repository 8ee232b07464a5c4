"""Sabotages of the package, each of which some test must catch: written by hand, and made by rule over the releases' own folders."""
