"""The sums of ClippedGradient and MixtureMoments in one pass over the records on a GPU, and their Triton kernels."""
