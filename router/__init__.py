"""The OpenAI-compatible front door: sends each request to a prefill worker, then to a decode worker."""
