"""Settings of the encoder service."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from shared.settings import ServiceSettings


class EncoderSettings(ServiceSettings):
    """Turns pictures into embeddings and sends them to language services."""

    model_config = SettingsConfigDict(cli_prog_name="python -m services.encoder")

    port: int = Field(8001, description="Port that HTTP listens on.")
    max_items: int = Field(256, gt=0, description="Items in work or waiting; past it a request gets 503 encoder_overloaded.")
    max_batch_items: int = Field(16, gt=0, description="Items that the tower computes together.")
    max_batch_tokens: int = Field(16_384, gt=0, description="Tokens that the tower computes together, past the first item.")
    max_media_bytes: int = Field(32 * 2**20, gt=0, description="Bytes of one encoded picture.")
    max_body_bytes: int = Field(256 * 2**20, gt=0, description="Bytes of one request's body.")
    max_pixels: int = Field(100_000_000, gt=0, description="Pixels of one picture, before it is scaled.")
    fetch_timeout: float = Field(10.0, gt=0, description="Seconds for fetching one URL, redirects included.")
    fetch_redirects: int = Field(3, ge=0, description="Redirects followed for one URL.")
    allow_private_urls: bool = Field(False, description="Fetch URLs that lead to private and loopback addresses too.")
    publish_timeout: float = Field(2.0, gt=0, description="Seconds for handing one message to a connected receiver.")
