"""Types that cross a process boundary: handoff, worker registration and status, worker configuration, errors.

Standard library and pydantic only, so that the router can use them without torch, vLLM or NIXL.
"""
