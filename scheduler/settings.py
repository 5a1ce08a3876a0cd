"""What the scheduler can be told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from chunkmesh.known_settings import flag_of
from chunkmesh.settings import Address, Host, Port, Settings
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
    """PEM file of the certificate of the users' port, where it is another than --ssl-certfile."""
    users_ssl_keyfile: Path | None = None
    """Key of --users-ssl-certfile."""
    ssl_client_ca: Path | None = None
    """PEM file of the authorities of users' certificates; with it the users' port takes no
    connection without such a certificate."""
    hicache_url: Address | None = None
    """HOST:PORT of hicache-server, without http://; if not given, devices are the only cache."""
    mesh_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""
    """Schedulers of one name are those of one mesh: one is active, the others stand by and take
    over when it is lost, by a lease in --redis-url. Empty says that there is no other. Not the
    model's name, since several meshes of one model may share a Redis."""
    redis_url: tuple[str, ...] = ()
    """Redis or Valkey that holds the lease of --mesh-name, the same for all of its schedulers.
    Given several times as for hicache-server."""
    redis_username: str = ""
    """Name of the ACL user at Redis."""
    redis_password_file: Path | None = None
    """File of its password; read at every connection."""
    redis_ca_certs: Path | None = None
    """PEM file of the authorities of a Redis with TLS (rediss://); the system's if not given."""
    advertise_host: Host = ""
    """Host under which others reach this scheduler, told by those that stand by; --host if empty,
    or this machine's name where that is every network."""
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
    max_queued_tokens: Annotated[int, Field(ge=0)] = 0
    """Most prompt tokens of requests that wait; more are refused, but for a user's only one. 0
    means no limit."""
    max_running_requests_per_user: Annotated[int, Field(ge=0)] = 0
    """Most outputs of one user that hold pages at a time; the user's others wait. 0 means no
    limit."""
    max_queued_requests_per_user: Annotated[int, Field(ge=0)] = 0
    """Most requests of one user that wait; more are refused with RESOURCE_EXHAUSTED. 0 means no
    limit."""
    max_queued_tokens_per_user: Annotated[int, Field(ge=0)] = 0
    """Most prompt tokens of one user's requests that wait, likewise. 0 means no limit."""
    max_user_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    """Highest priority that users may ask for; operators may ask for any. If not given, 0 where
    users have keys or certificates, so that none goes before all others for ever; else 100."""
    max_connections: Annotated[int, Field(ge=1)] = 512
    """Most connections to the users' port; more are closed at once."""
    max_unread_bytes: Annotated[int, Field(ge=1024)] = 4 << 20
    """Most bytes of a stream that wait for a client that does not read; then its request ends with
    RESOURCE_EXHAUSTED. What gRPC itself buffers comes on top: 64 KiB, and what the client's side
    takes in."""
    unread_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """Seconds that a message may wait for a client that does not read; then its request ends with
    RESOURCE_EXHAUSTED. 0 means no limit."""
    request_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds that a request may take, waiting included; then it ends with DEADLINE_EXCEEDED. 0
    means no limit but the client's own deadline."""
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
    """Added to --load-timeout-ms for every 1000 cached tokens, in ms."""
    load_min_tokens: Annotated[int, Field(ge=0)] = 256
    """Fewer cached tokens are computed rather than loaded, where the stages' latency is not known:
    where it is, the faster of both is chosen."""
    worker_timeout: Annotated[float, Field(gt=0)] = 1.0
    """Seconds of silence after which a worker is given up; workers say something every 0.25 s."""
    stage_deadline_floor: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Least seconds that a stage has for a microbatch before its worker is given up; it has 4 times
    what is predicted, and 10 times more where nothing is or for a new shape. 2 if not given, 0.5
    where all stages compute on GPUs; 0 gives up nobody for being slow."""
    takeover_wait: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """Seconds that requests wait for another worker when one was lost and no attached one can take
    over; then they end with UNAVAILABLE."""
    drain_timeout: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that running requests get to finish on SIGTERM, and that they wait for the successor
    of a worker that has said it leaves."""

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        if self.mesh_name and not self.redis_url:
            raise ValueError(f"--mesh-name {self.mesh_name} needs --redis-url, where the lease is")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.api_key_file is not None and self.api_key_file == self.admin_api_key_file:
            raise ValueError(
                f"--api-key-file and --admin-api-key-file are both {self.api_key_file}: each user"
                " would be an operator"
            )
        return self

    @model_validator(mode="after")
    def _check_priority(self) -> Self:
        knows_operators = self.knows_users or self.admin_api_key_file is not None
        if self.max_user_priority is not None and not knows_operators:
            raise ValueError(
                f"--max-user-priority {self.max_user_priority} needs --api-key-file,"
                " --admin-api-key-file or --ssl-client-ca: without them everybody is an operator"
            )
        return self

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
    def knows_users(self) -> bool:
        """Whether users have keys or certificates."""
        return self.api_key_file is not None or self.ssl_client_ca is not None

    @property
    def names_strategy(self) -> bool:
        """Whether some source of settings has named a strategy."""
        return self.enable_dynamic_chunking or "chunk_strategy" in self.model_fields_set

    @property
    def wanted_strategy(self) -> ChunkStrategyName:
        """How prompts are to be cut, whichever setting says so."""
        return "dynamic" if self.enable_dynamic_chunking else self.chunk_strategy
