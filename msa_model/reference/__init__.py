"""Plain-torch twins of the ops: what each kernel is checked against, and what runs where no kernel does."""
