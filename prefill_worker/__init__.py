"""The prefill role: settings and entry point of a worker that computes prompts' KV and hands it off."""
