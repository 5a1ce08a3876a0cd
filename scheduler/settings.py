"""What the scheduler can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from chunkmesh.known_settings import flag_of
from chunkmesh.settings import Address, Port, Settings
from scheduler.engine_config import ChunkStrategyName, LoadPolicy, WritePolicy


class SchedulerSettings(Settings):
    """Takes requests, cuts prompts into chunks and drives the stage workers."""

    service: ClassVar[str] = "scheduler"
    command: ClassVar[str] = "chunkmesh-scheduler"
    flag_aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "model_path": ("--model",),
        "page_size": ("--block-size",),
        "chunked_prefill_size": ("--max-num-batched-tokens",),
    }

    model_path: Path
    """Hugging Face folder of the model: config.json, tokenizer.json, chat template. `chunkmesh
    model path` prints the demo model's."""
    served_model_name: str = ""
    """Name that users see; the folder's name if empty."""
    context_length: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt and output together, in tokens; may exceed the model's own limit."""
    port: Port = 50051
    """Users' gRPC port."""
    internal_port: Port = 50052
    """gRPC port that stage workers attach to."""
    http_port: Port = 50080
    """Port of the HTTP side door."""
    api_key_file: Path | None = None
    """File of users' bearer keys, one a line, each perhaps followed by a space and the name of its
    tenant, whose cached prefixes are its own. Without it the users' port asks nobody for a key."""
    admin_api_key_file: Path | None = None
    """The same for operators, who alone may flush caches and see others' requests."""
    users_ssl_certfile: Path | None = None
    """Certificate of the users' port, where it is another than --ssl-certfile."""
    users_ssl_keyfile: Path | None = None
    """Its key."""
    ssl_client_ca: Path | None = None
    """Authorities of users' certificates; with it the users' port takes no connection without
    one."""
    hicache_url: Address | None = None
    """HOST:PORT of hicache-server, without http://; if not given, devices are the only cache."""
    enable_prefix_caching: bool = True
    """Let pages of ended requests stay on the devices for later ones with the same prefix, until
    their room is needed."""
    cache_secret_file: Path | None = None
    """File of at least 16 secret bytes that go into the keys of all pages. Only schedulers with the
    same secret find them, and nobody else can tell which page belongs to which prompt, tenant or
    cache_salt. Without it salts are as good as they are hard to guess."""
    page_size: Annotated[int, Field(ge=1, le=1024)] = 64
    """Tokens a KV page holds."""
    chunked_prefill_size: Annotated[int, Field(ge=1, le=1 << 20)] = 256
    """Most prefill tokens in one microbatch: the longest chunk, and the size of fixed ones."""
    chunk_strategy: ChunkStrategyName = "optimal"
    """How prompts are cut into chunks: fixed, dynamic (SGLang's rule) or optimal. The last two need
    the stages' latency; while it is not known well enough chunks are fixed, and GetServerInfo says
    why."""
    enable_dynamic_chunking: bool = False
    """The same as --chunk-strategy dynamic."""
    dynamic_chunking_smooth_factor: Annotated[float, Field(ge=0, le=1)] = 0.75
    """How far dynamic chunks follow the model away from --chunked-prefill-size, from 0 to 1."""
    max_chunk_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 500.0
    """Longest that optimal lets a microbatch with a chunk take on a stage, in ms, while others wait
    for it: those who decode, and other prompts. 0 means no limit."""
    pp_max_micro_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Most requests in one microbatch; no limit if not given."""
    pp_async_batch_depth: Annotated[int, Field(ge=-64, le=64)] = 0
    """Microbatches in flight beyond one more than there are stages; negative for fewer."""
    decode_groups: Annotated[int, Field(ge=1)] | None = None
    """Groups that decoding requests are spread over; as many as there are stages if not given."""
    max_running_requests: Annotated[int, Field(ge=1)] = 256
    """Most requests that hold pages at a time."""
    max_queued_requests: Annotated[int, Field(ge=1)] = 1024
    """Most requests that wait; more are refused with RESOURCE_EXHAUSTED."""
    max_outstanding_stores: Annotated[int, Field(ge=0)] = 64
    """Most stores of pages under way; more are dropped, and with 0 nothing is stored."""
    hicache_write_policy: WritePolicy = "write_through"
    """When full pages are stored: write_through, all of them at once; write_through_selective,
    those that a later request has found on the workers; write_back, those that the workers have no
    more room for, and on SIGTERM all, as far as --drain-timeout allows."""
    latency_model: Path | None = None
    """File of stage latencies to plan with instead of what workers measure; `chunkmesh status
    --save-latency-model` writes one."""
    load_policy: LoadPolicy = "timeout"
    """When a load of cached pages ends that has not brought all: timeout, at its time limit;
    best_effort, when the request could begin; wait_complete, never. What is there is used, the rest
    is computed."""
    load_timeout_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1000.0
    """Time limit of a load with --load-policy timeout, from the request's arrival, in ms."""
    load_timeout_ms_per_1k_tokens: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 250.0
    """Added to it for every 1000 cached tokens, in ms."""
    load_min_tokens: Annotated[int, Field(ge=0)] = 256
    """Fewer cached tokens are computed rather than loaded, where the stages' latency is not known:
    where it is, the faster of both is chosen."""
    worker_timeout: Annotated[float, Field(gt=0)] = 3.0
    """Seconds of silence after which a worker is given up."""
    drain_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running requests get to finish on SIGTERM."""

    @model_validator(mode="after")
    def _check_strategy(self) -> Self:
        is_given = "chunk_strategy" in self.model_fields_set
        if self.enable_dynamic_chunking and is_given and self.chunk_strategy != "dynamic":
            raise ValueError(
                f"--enable-dynamic-chunking contradicts --chunk-strategy {self.chunk_strategy}"
            )
        return self

    @model_validator(mode="after")
    def _check_users_ssl(self) -> Self:
        if (self.users_ssl_certfile is None) != (self.users_ssl_keyfile is None):
            raise ValueError("--users-ssl-certfile and --users-ssl-keyfile need each other")
        for name in ("users_ssl_certfile", "ssl_client_ca"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ValueError(
                    f"{flag_of(name)} needs --ssl-certfile: with TLS for users, workers use it too"
                )
        return self

    @property
    def names_strategy(self) -> bool:
        """Whether some source of settings has named a strategy."""
        return self.enable_dynamic_chunking or "chunk_strategy" in self.model_fields_set

    @property
    def wanted_strategy(self) -> ChunkStrategyName:
        """How prompts are to be cut, whichever setting says so."""
        return "dynamic" if self.enable_dynamic_chunking else self.chunk_strategy
