"""One module, one claim: `python -m benchmarks.NAME [--smoke] [--seed N] [--json FILE] [--plot DIR]`."""
