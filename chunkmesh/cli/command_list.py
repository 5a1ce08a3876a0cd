"""Names of all commands and what they do, for the help, which must not wait for their imports.

A test holds both tables equal to what the commands say of themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

OWN_COMMANDS: Mapping[str, str] = {
    "up": "Start Redis, hicache-server, the scheduler and the stage workers; Ctrl-C ends them all.",
    "status": "Show the routes, workers, links, latencies and load of a mesh.",
    "generate": "Continue a prompt. Text streams to standard output; Ctrl-C cancels the request.",
    "chat": "Talk with the model. /reset forgets the conversation, /exit or Ctrl-D leaves.",
    "demo": "Start a two-stage mesh and show a chat, a long prompt, and the same prompt from the"
    " cache.",
    "trace": "Show when which stage worked on the last requests: as text, picture, or Perfetto"
    " trace.",
    "bench": "Measure how fast a mesh serves a load, and compare such measurements.",
    "model": "Prepare models.",
}
"""Of chunkmesh.cli, each the module of its name."""

SERVICE_COMMANDS: Mapping[str, str] = {
    "plan": "Plan the prefill of long prompts on a pipeline that need not exist; needs no GPU, no"
    " mesh.",
    "tune": "Measure on an idle mesh which chunks are fastest, and print the flags to set.",
}
"""Of services, which name them as entry points."""
