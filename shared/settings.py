"""Settings that both services have. Each is an environment variable with the prefix ``EPD_`` and a command-line flag."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

DEMO_MODEL = "examples/demo_model"


class ModelSettings(BaseSettings):
    """Which checkpoint, and how it is computed with."""

    model_config = SettingsConfigDict(
        env_prefix="EPD_",
        extra="ignore",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        protected_namespaces=(),
    )

    model: str = Field(DEMO_MODEL, description="Checkpoint: a local folder, or a name on the model hub.")
    revision: str | None = Field(None, description="Revision on the model hub.")
    families: str = Field(
        "", description="Python modules with families of models besides those served anyway, separated by commas."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that the checkpoint brings along, where transformers has none for it."
    )
    device: str = Field("auto", description="torch device; auto is the GPU if there is one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="Type of weights and activations.")


class ServiceSettings(ModelSettings):
    """Read once at start, passed in from there on."""

    threads: int = Field(0, ge=0, description="torch's CPU threads; 0 is half of the cores, since two services share them.")
    host: str = Field("127.0.0.1", description="Address that HTTP listens on.")
    secret_file: Path | None = Field(
        None, description="Deployment secret that all keys are derived from; made by python -m shared.security keygen."
    )
    plain_seam: bool = Field(
        False,
        description="Let the services talk without keys beyond loopback too; only for networks that nobody else is on.",
    )
    mm_feature_transport: Literal["cpu", "shm", "cuda_ipc"] = Field(
        "shm",
        description="Best means by which embeddings may cross: frames, shared memory on one host, or GPU memory; "
        "where the two services cannot do it, the next one is used.",
    )
    ipc_pool_handle_cache: bool = Field(True, description="With cuda_ipc: share one pool of GPU memory, opened once.")
    body_timeout: float = Field(30.0, gt=0, description="Seconds that the body of a request may take to arrive.")
    max_item_tokens: int = Field(
        16_384,
        gt=0,
        description="Tokens that one picture may take; the default is the most that Qwen-VL's processors make of one.",
    )
    drain_timeout: float = Field(
        10.0, gt=0, description="Seconds from SIGTERM to the end: open requests are finished, new ones refused."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people or for machines.")
    tracing: bool = Field(False, description="Send traces, as the standard OTEL_ variables say; needs epd-pair[otel].")

    def torch_threads(self) -> int:
        """The number of CPU threads torch may use."""
        return self.threads or max(1, (os.cpu_count() or 2) // 2)
