"""What a prefill worker asks of vLLM beyond the common settings."""

# Prompts are cut into chunks of the token budget, so that one long prompt does not hold the others back.
ROLE_ARGS: tuple[str, ...] = ("--enable-chunked-prefill",)
