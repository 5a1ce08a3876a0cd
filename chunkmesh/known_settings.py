"""Names of the settings of all services, so that each can tell a typo from another's setting.

Services share one environment and one file but never import each other. A test holds these
names equal to the fields of the services' settings classes.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMON_NAMES = frozenset(
    {"host", "log_format", "log_level", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
)
"""Fields of chunkmesh.settings.Settings, which every service has."""

SERVICE_NAMES: Mapping[str, frozenset[str]] = {
    "scheduler": frozenset(
        {
            "admin_api_key_file",
            "advertise_host",
            "api_key_file",
            "cache_secret_file",
            "chunk_strategy",
            "chunked_prefill_size",
            "context_length",
            "decode_groups",
            "drain_timeout",
            "dynamic_chunking_smooth_factor",
            "enable_dynamic_chunking",
            "enable_prefix_caching",
            "hicache_url",
            "hicache_write_policy",
            "http_port",
            "internal_port",
            "latency_model",
            "load_min_tokens",
            "load_policy",
            "load_timeout_ms",
            "load_timeout_ms_per_1k_tokens",
            "max_chunk_ms",
            "max_connections",
            "max_outstanding_stores",
            "max_queued_requests",
            "max_queued_requests_per_user",
            "max_queued_tokens",
            "max_queued_tokens_per_user",
            "max_running_requests",
            "max_running_requests_per_user",
            "max_unread_bytes",
            "max_user_priority",
            "mesh_name",
            "model_path",
            "page_size",
            "port",
            "pp_async_batch_depth",
            "pp_max_micro_batch_size",
            "redis_ca_certs",
            "redis_password_file",
            "redis_url",
            "redis_username",
            "request_timeout",
            "served_model_name",
            "ssl_client_ca",
            "stage_deadline_floor",
            "takeover_wait",
            "unread_timeout",
            "users_ssl_certfile",
            "users_ssl_keyfile",
            "worker_timeout",
        }
    ),
    "stage_worker": frozenset(
        {
            "cuda_graph_max_bs",
            "data_port",
            "device",
            "drain_timeout",
            "dtype",
            "hicache_ratio",
            "hicache_size",
            "http_port",
            "layers",
            "load_format",
            "max_total_tokens",
            "mem_fraction",
            "model_path",
            "peer",
            "port",
            "profile",
            "profile_dir",
            "profile_timeout",
            "profile_tokens",
            "quantization",
            "redis_ca_certs",
            "redis_password_file",
            "redis_url",
            "redis_username",
            "scheduler",
            "threads",
            "transport",
            "warmup_mode",
        }
    ),
    "hicache": frozenset(
        {
            "eviction_policy",
            "http_port",
            "max_bytes",
            "port",
            "redis_ca_certs",
            "redis_password_file",
            "redis_url",
            "redis_username",
        }
    ),
    "gateway": frozenset(
        {
            "drain_timeout",
            "max_body_bytes",
            "max_connections",
            "max_requests",
            "port",
            "request_timeout",
            "retry_for",
            "server",
            "unread_timeout",
            "users_ssl_certfile",
            "users_ssl_keyfile",
        }
    ),
}
"""Service -> its own fields."""
MODULES: Mapping[str, str] = {
    "scheduler": "scheduler",
    "stage_worker": "stage_worker",
    "hicache": "hicache",
    "gateway": "chunkmesh.gateway",
}
"""Service -> its package."""

VARIABLE_PREFIX = "CHUNKMESH_"
API_KEY_VARIABLE = "CHUNKMESH_API_KEY"
"""Key that the command lines send."""
VARIABLES = frozenset({API_KEY_VARIABLE, "CHUNKMESH_CONFIG", "CHUNKMESH_HICACHE"})
"""Environment variables that are no field of a service."""


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a field."""
    return VARIABLE_PREFIX + name.upper()
