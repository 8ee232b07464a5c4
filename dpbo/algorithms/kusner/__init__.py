"""Differentially Private Bayesian Optimization (Kusner, Gardner, Garnett and Weinberger 2015)."""
