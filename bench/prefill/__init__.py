"""Prefill steps with their tokens split over ranks and in time (SP, DBO), beside plain tensor parallelism."""
