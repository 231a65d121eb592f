"""The parts of a message: text, and items of media."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json

from shared.dataurl import is_data_url
from shared.http import check_json
from shared.identity import Modality


def wrong(param: str, text: str) -> ValidationError:
    """What a validator of a whole raises to blame one of its fields."""
    return ValidationError.from_exception_data(
        param, [{"type": PydanticCustomError("value_error", "{text}", {"text": text}), "loc": (param,), "input": None}]
    )


def json_of(text: str) -> Any:
    """What JSON in a text of a request says, which for the check of the whole body was one value.

    Raises:
        ValueError: it is none, or holds too many values.
    """
    check_json(text.encode())
    return from_json(text, allow_inf_nan=False)


def by_form(*forms: str) -> Discriminator:
    """Chooses among the members of a union, whose tags are ``forms``, by what form a value has: ``(object)``, ``(list)``,
    ``(bool)``, else ``(text)``. Where that is none of them, the first is told what is wrong with it."""

    def form(value: object) -> str:
        kinds = ((dict | BaseModel, "(object)"), (list, "(list)"), (bool, "(bool)"))
        found = next((name for kind, name in kinds if isinstance(value, kind)), "(text)")
        return found if found in forms else forms[0]

    return Discriminator(form)


class RequestModel(BaseModel):
    """A part of a request. Fields that are unknown are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Url = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class MediaUrl(RequestModel):
    """Where a video or a sound is. A string is its short form."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    url: Url = Field(description="A data, http or https URL.")

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
