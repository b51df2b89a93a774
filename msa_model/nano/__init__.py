"""The nano checkpoint: the real architecture scaled down to run on two cores, built from a seed."""
