"""Measurements: each a ratio against a named peer on the same work in one run; results under bench/results/."""
