"""Images as a model sees them: how large they become, how many tokens they take, their pixels. Never imports torch."""
