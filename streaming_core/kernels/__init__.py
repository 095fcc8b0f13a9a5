"""Custom kernels.  The only package that makes any."""
