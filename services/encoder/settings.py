"""Settings of the encoder service."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from services.encoder.discovery import check_target
from shared.addresses import check_base_url
from shared.settings import ServiceSettings


class EncoderSettings(ServiceSettings):
    """Turns pictures, videos and sounds into embeddings and sends them to language services."""

    model_config = SettingsConfigDict(cli_prog_name="python -m services.encoder")

    port: int = Field(8001, description="Port that HTTP listens on.")
    announce_to: str = Field(
        "",
        description="Base URLs of language services that the encoder registers with, separated by commas; may be empty. "
        "dns+http://name:port is each address that the name has at the time.",
    )
    advertise_url: str | None = Field(
        None, description="Base URL that language services reach it at; without one, the address that routes to each of them."
    )
    announce_interval: float = Field(1.0, gt=0, description="Seconds between registrations.")
    max_items: int = Field(256, gt=0, description="Items in work or waiting; past it a request gets 503 encoder_overloaded.")
    max_bytes: int = Field(
        2**30,
        gt=0,
        description="Bytes of bodies, media and features held at once; past it a request gets 503 encoder_overloaded.",
    )
    max_batch_items: int = Field(16, gt=0, description="Items that the tower computes together.")
    max_batch_tokens: int = Field(16_384, gt=0, description="Tokens that the tower computes together, past the first item.")
    stall_timeout: float = Field(
        20.0,
        gt=0,
        description="Seconds that the tower may take for one batch; past it the encoder counts as wedged: its heartbeats stop.",
    )
    max_media_bytes: int = Field(32 * 2**20, gt=0, description="Bytes of one picture, video or sound, as it comes.")
    max_body_bytes: int = Field(256 * 2**20, gt=0, description="Bytes of one request's body.")
    max_pixels: int = Field(100_000_000, gt=0, description="Pixels of one picture, before it is scaled.")
    max_sound_seconds: float = Field(600.0, gt=0, description="Seconds of one sound.")
    max_video_seconds: float = Field(3600.0, gt=0, description="Seconds of one video.")
    max_video_frames: int = Field(768, gt=0, description="Frames that the model looks at of one video.")
    max_video_pixels: int = Field(
        2**28, gt=0, description="Pixels of these frames together, before they are scaled; three bytes each while they are."
    )
    max_decode_seconds: float = Field(
        20.0, gt=0, description="Processor time, in seconds, that decoding one sound, video or HEIC picture may take."
    )
    max_decode_bytes: int = Field(2**30, gt=0, description="Bytes of memory that decoding one of them may take.")
    max_fetches: int = Field(32, gt=0, description="URLs that are fetched at once; requests take turns.")
    fetch_timeout: float = Field(10.0, gt=0, description="Seconds for fetching one URL, redirects included.")
    fetch_redirects: int = Field(3, ge=0, description="Redirects followed for one URL.")
    allow_private_urls: bool = Field(False, description="Fetch URLs that lead to private and loopback addresses too.")
    max_shared_bytes: int = Field(
        2**29, gt=0, description="Bytes of memory lent to receivers at once, of the host (shm) or of the GPU (cuda_ipc)."
    )
    media_cache_bytes: int = Field(
        16 * 2**20,
        ge=0,
        description="Bytes for knowing pictures again by how they came, so that they are not even decoded; 0 turns it off.",
    )
    embedding_cache_bytes: int = Field(
        256 * 2**20,
        ge=0,
        description="Bytes of embeddings kept for pictures that come again, on the device with cuda_ipc; 0 turns it off, and "
        "the other cache too: every item is computed for itself.",
    )
    max_queued_bytes: int = Field(
        256 * 2**20,
        gt=0,
        description="Bytes of messages on their way to one language service; past it the next one waits, unless it is alone.",
    )
    publish_timeout: float = Field(
        2.0, gt=0, description="Seconds that a message waits for a language service that takes nothing of what is before it."
    )
    faults_enabled: bool = Field(False, description="Serve /v1/faults, by which this encoder is made to fail; for tests only.")

    @field_validator("announce_to")
    @classmethod
    def _check_announce_to(cls, value: str) -> str:
        _targets(value)
        return value

    @field_validator("advertise_url")
    @classmethod
    def _check_advertise_url(cls, value: str | None) -> str | None:
        return check_base_url(value) if value else None

    def announce_targets(self) -> tuple[str, ...]:
        """The entries of ``announce_to``, in order, without repeats."""
        return _targets(self.announce_to)


def _targets(value: str) -> tuple[str, ...]:
    """Raises ValueError where one is neither a base URL nor one with a name to be resolved."""
    return tuple(dict.fromkeys(check_target(target) for target in value.split(",") if target.strip()))
