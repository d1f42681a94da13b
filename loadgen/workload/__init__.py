"""What to send: prompts and their lengths. Pure and seeded; reading a prompts file is the only input."""
