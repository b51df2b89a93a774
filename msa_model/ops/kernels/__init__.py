"""Triton kernels, one file an op: no argument checks and no launches, which are in the op's own file."""
