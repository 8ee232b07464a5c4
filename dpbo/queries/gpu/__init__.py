"""The sums of gradient.py and mixture_moments.py in one pass on a GPU, and their Triton kernels."""
