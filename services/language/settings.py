"""Settings of the language service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from services.language.engine.options import EngineName
from shared.addresses import base_urls
from shared.settings import ServiceSettings


class LanguageSettings(ServiceSettings):
    """Answers OpenAI chat completions over embeddings that encoders send."""

    model_config = SettingsConfigDict(cli_prog_name="python -m services.language")

    port: int = Field(8000, description="Port that HTTP listens on.")
    served_model_name: str | None = Field(None, description="Name of the model in the API; the folder's name without one.")
    api_key: SecretStr | None = Field(
        None, description="Keys that callers of the API must have one of, separated by commas; without any, everybody may call."
    )
    cors_origins: str = Field(
        "", description="Origins whose pages browsers let call the API, separated by commas; * is all of them."
    )
    keepalive: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Seconds of silence in a stream after which a comment is sent: nobody hangs up then.",
    )
    faults_enabled: bool = Field(
        False, description="Let callers of the API set faults of encoders, where those allow it too; for the console."
    )
    encoders: str = Field("http://127.0.0.1:8001", description="Base URLs of encoders, separated by commas; may be empty.")
    data_host: str = Field("127.0.0.1", description="Address that the embedding socket listens on.")
    data_port: int = Field(0, ge=0, le=65535, description="Port of the embedding socket; 0 lets the system choose.")
    advertise_host: str | None = Field(
        None, description="Host that encoders send embeddings to; without one, the address that routes to each encoder."
    )
    embedding_timeout: float = Field(30.0, gt=0, le=3600, description="Seconds that a request waits for its embeddings.")
    request_timeout: float = Field(600.0, gt=0, description="Seconds from a request's arrival to the end of its answer.")
    encoder_retries: int = Field(1, ge=0, description="Times that an item may be moved to another encoder after a failure.")
    liveness_timeout: float = Field(
        2.0, ge=0.2, le=60, description="Seconds without a sign of life after which an encoder is lost."
    )
    breaker_failures: int = Field(
        5, gt=0, description="Failures in a row after which an encoder gets single requests as probes only."
    )
    arrival_grace: float = Field(
        1.0, gt=0, description="Seconds that an item may come after the encoder said that all were sent."
    )
    health_interval: float = Field(0.5, gt=0, description="Seconds between looks at each encoder.")
    max_items_per_request: int = Field(32, gt=0, description="Pictures in one request.")
    max_media_bytes: int = Field(32 * 2**20, gt=0, description="Bytes of one picture, video or sound in a data URL.")
    max_body_bytes: int = Field(64 * 2**20, gt=0, description="Bytes of one request's body.")
    max_message_bytes: int = Field(
        2**30, gt=0, description="Bytes of one frame of a message; less, where the largest item needs less."
    )
    max_embedding_bytes: int = Field(
        2**31, gt=0, description="Bytes of embeddings held for waiting requests, and once more in the engine; past it 503."
    )
    embedding_cache_bytes: int = Field(
        256 * 2**20, ge=0, description="Bytes of embeddings kept for pictures that come again; 0 keeps none, nor shares any."
    )
    engine: EngineName = Field("torch", description="What computes the language half: see docs/engines.md.")
    vllm_args: dict[str, Any] = Field(
        default_factory=dict, description="A JSON object of vLLM's own engine arguments, for EPD_ENGINE=vllm."
    )
    kv_cache_memory: int = Field(0, ge=0, description="Bytes of the key/value pool; 0 is as much as is useful and there.")
    block_size: int = Field(16, gt=0, description="Tokens of one block of the pool.")
    max_running: int = Field(64, gt=0, description="Sequences that the engine computes together.")
    max_batch_tokens: int = Field(1024, gt=0, description="Tokens that the engine computes in one step.")
    max_queue: int = Field(1024, gt=0, description="Requests in the engine, running or waiting; past it 503 engine_overloaded.")

    @field_validator("encoders")
    @classmethod
    def _check_encoders(cls, value: str) -> str:
        base_urls(value)
        return value

    def api_keys(self) -> frozenset[str]:
        """The keys that callers may have; empty where none is asked for."""
        given = "" if self.api_key is None else self.api_key.get_secret_value()
        return frozenset(key.strip() for key in given.split(",") if key.strip())

    def origins(self) -> list[str]:
        """The origins whose pages may call the API."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    def encoder_urls(self) -> tuple[str, ...]:
        """The configured encoders, in order, without repeats."""
        return base_urls(self.encoders)

    def waiting_places(self) -> int:
        """How many requests may wait for embeddings."""
        return max(1, self.max_queue // 2)

    def picture_places(self) -> int:
        """How many requests with pictures may be in work before the engine has them: some more than may wait for embeddings, so
        that what is known already finds room among them."""
        return max(1, self.max_queue * 5 // 8)

    def model_name(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or Path(self.model).name
