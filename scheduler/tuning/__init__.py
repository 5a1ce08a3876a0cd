"""`chunkmesh tune`: measures on a mesh that runs which chunks suit it, and says what to set.

`candidates`, `race` and `advice` decide and are pure; `measure` runs prompts, `command` joins them.
"""
