"""KV rows from prefill to decode: row geometry, handshake, leases, the NIXL agent and the vLLM connector."""
