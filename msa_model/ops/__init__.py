"""The ops of the model, one file each: checks of their arguments, choice of tiles, launch of a Triton kernel."""
