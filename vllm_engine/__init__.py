"""The one adapter to vLLM's server: its arguments, our added routes, registration with the router."""
