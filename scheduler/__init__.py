"""The one service that decides: admission, chunk planning, page allocation and pipeline control."""
