"""Kernels on one CUDA GPU beside upstream's, in one run: times, bytes and shares of the measured read bandwidth."""
