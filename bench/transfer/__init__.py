"""Rows against other ways to move the same KV bytes from one process to another, in one run: ``-m bench.transfer``."""
