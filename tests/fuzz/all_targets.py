"""All decoders that are fuzzed."""

from __future__ import annotations

from tests.fuzz.targets import chat_template, data_plane, files, model_folder, redis_values, weights

TARGETS = (
    *data_plane.TARGETS,
    *redis_values.TARGETS,
    *model_folder.TARGETS,
    *weights.TARGETS,
    *files.TARGETS,
    *chat_template.TARGETS,
)
