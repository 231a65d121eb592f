"""The parts of a message: text, and items of media."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from shared.dataurl import is_data_url
from shared.identity import Modality


class RequestModel(BaseModel):
    """A part of a request. Fields that are unknown are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Url = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class MediaUrl(RequestModel):
    """Where a video or a sound is: ``url`` is a data, http or https URL. A string is its short form."""

    url: Url

    @model_validator(mode="before")
    @classmethod
    def _accept_string(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class ImageUrl(MediaUrl):
    """Where an image is."""

    detail: Literal["auto", "low", "high"] = "auto"


class InputAudio(RequestModel):
    """A sound that is in the request: ``data`` is base64, or a data URL. The bytes tell their format, not ``format``."""

    data: Url
    format: str | None = None


class TextPart(RequestModel):
    type: Literal["text"]
    text: str


class ImagePart(RequestModel):
    modality: ClassVar[Modality] = "image"

    type: Literal["image_url"]
    image_url: ImageUrl

    @property
    def url(self) -> str:
        return self.image_url.url


class VideoPart(RequestModel):
    modality: ClassVar[Modality] = "video"

    type: Literal["video_url"]
    video_url: MediaUrl

    @property
    def url(self) -> str:
        return self.video_url.url


class AudioPart(RequestModel):
    modality: ClassVar[Modality] = "audio"

    type: Literal["audio_url"]
    audio_url: MediaUrl

    @property
    def url(self) -> str:
        return self.audio_url.url


class InputAudioPart(RequestModel):
    modality: ClassVar[Modality] = "audio"

    type: Literal["input_audio"]
    input_audio: InputAudio

    @property
    def url(self) -> str:
        """Its data as a data URL, which is decoded where others are."""
        data = self.input_audio.data
        return data if is_data_url(data) else f"data:;base64,{data}"


Part = Annotated[TextPart | ImagePart | VideoPart | AudioPart | InputAudioPart, Field(discriminator="type")]
