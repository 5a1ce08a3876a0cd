"""The user's command line: chunkmesh up, status, generate, chat, demo, model."""
