"""What a decode worker asks of vLLM beyond the common settings."""

# Chunked as well: a prompt that is computed here (recompute, or a request that no handoff can serve) must not stop
# the streams of the others.
ROLE_ARGS: tuple[str, ...] = ("--enable-chunked-prefill",)
