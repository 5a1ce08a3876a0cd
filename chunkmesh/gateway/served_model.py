"""The model that the mesh serves, as last told, and the names of its tokens."""

from __future__ import annotations

import time

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.mesh_client import MeshClient, Metadata
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import generation_pb2 as pb

_FRESH_S = 60.0
_LEAST_S = 1.0
"""Between two questions because of a name that is another: those who guess are no load."""


class ServedModel:
    """Owner of what is known of the model."""

    def __init__(self, client: MeshClient) -> None:
        """Know nothing yet."""
        self.names = TokenNames()
        """Of the model last told of."""
        self._client = client
        self._info: pb.GetModelInfoResponse | None = None
        self._asked_s = 0.0

    async def ask(self, metadata: Metadata) -> pb.GetModelInfoResponse:
        """Ask the mesh.

        Raises:
            ChunkMeshError: it says no, or nothing.
        """
        info = await self._client.model_info(metadata)
        if info != self._info:
            self._info, self.names = info, TokenNames()
        self._asked_s = time.monotonic()
        return info

    async def named(self, name: str, metadata: Metadata) -> pb.GetModelInfoResponse:
        """Return what is known of the model, which must have this name.

        Raises:
            ApiError: it has another.
            ChunkMeshError: as ask.
        """
        info, age_s = self._info, time.monotonic() - self._asked_s
        is_other = info is None or info.served_model_name != name
        if info is None or age_s > (_LEAST_S if is_other else _FRESH_S):
            info = await self.ask(metadata)
        if info.served_model_name != name:
            raise no_such_model()
        return info


def no_such_model() -> ApiError:
    """Return the error of a name that no model has."""
    return ApiError(
        404,
        "there is no model of this name; GET /v1/models tells which there is",
        param="model",
        code="model_not_found",
    )
