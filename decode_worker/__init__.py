"""The decode role: settings and entry point of a worker that pulls KV rows and generates."""
