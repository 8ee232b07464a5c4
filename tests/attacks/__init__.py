"""The ways in which privacy software has been broken, each tried on dpbo: classes A1 to A30 of
CONTRIBUTING.md.
"""
