"""The experiments of the four papers, one command a paper."""
