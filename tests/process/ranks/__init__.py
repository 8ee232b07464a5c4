"""Curators on several ranks, in real processes."""
