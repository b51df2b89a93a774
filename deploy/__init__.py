"""One typed deployment specification and the launcher that runs it on this machine."""
