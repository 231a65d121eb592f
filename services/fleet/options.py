"""What a fleet is made of: the arguments of the Serve application."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from services.encoder.settings import EncoderSettings
from services.language.settings import LanguageSettings
from shared.settings import DEMO_MODEL, ServiceSettings

_ROOT = Path(__file__).resolve().parents[2]
_SHARED = {"model", "secret_file", "plain_seam"}


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Needs(_Options):
    """What one replica needs of a node; Ray places it where that is free."""

    num_cpus: float = Field(1.0, ge=0, description="CPU cores; the service has as many threads, and one at least.")
    num_gpus: float = Field(0.0, ge=0, description="GPUs of one node, or a part of one; the service sees no others.")
    memory: int | None = Field(None, gt=0, description="Bytes of the node's memory.")
    resources: dict[str, PositiveFloat] = Field(default_factory=dict, description="Resources that the cluster's nodes name.")
    accelerator_type: str | None = Field(None, description="Kind of GPU, as Ray calls it.")
    env_vars: dict[str, str] = Field(default_factory=dict, description="Variables of the replica's environment.")

    def actor_options(self) -> dict[str, Any]:
        """The same as ``ray_actor_options``."""
        told: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": self.resources}
        if self.memory is not None:
            told["memory"] = self.memory
        if self.accelerator_type is not None:
            told["accelerator_type"] = self.accelerator_type
        if self.env_vars:
            told["runtime_env"] = {"env_vars": self.env_vars}
        return told


class _Part(_Options):
    needs: Needs = Field(default_factory=Needs)
    min_replicas: PositiveInt = Field(1, description="Replicas that there are always.")
    max_replicas: PositiveInt = Field(1, description="Replicas that there are at most.")
    upscale_delay_s: float = Field(2.0, ge=0, description="Seconds for which more must be wanted until there are more.")
    downscale_delay_s: float = Field(60.0, ge=0, description="Seconds for which fewer must do until there are fewer.")
    look_back_s: PositiveFloat = Field(6.0, description="Seconds over which load is averaged.")
    metrics_interval_s: PositiveFloat = Field(2.0, description="Seconds between a replica's reports of its load.")
    health_check_period_s: PositiveFloat = Field(5.0, description="Seconds between looks at a replica; three that fail end it.")
    health_check_timeout_s: PositiveFloat = Field(10.0, description="Seconds that such a look may take.")
    acquaintance_s: float = Field(
        10.0, ge=0, description="Seconds that a new replica waits, before it counts as ready, to be known to the other side."
    )
    max_surge_percent: int = Field(
        100,
        ge=0,
        le=100,
        description="Replicas that may be there beside the old ones during an update; with 0 old ones go first, which needs no "
        "room on nodes.",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the service by their names, as in EPD_ variables, in small letters."
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> _Part:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}, less than min_replicas, which is {self.min_replicas}")
        if self.look_back_s <= self.metrics_interval_s:
            raise ValueError("look_back_s must be longer than metrics_interval_s")
        return self


class EncoderPart(_Part):
    """The encoders. They are called by language services, not through Serve, and scaled by what they tell of themselves."""

    max_replicas: PositiveInt = Field(4, description="Replicas that there are at most.")
    items_per_replica: PositiveFloat = Field(8.0, description="Items in work that an encoder should have.")
    target_wait_s: PositiveFloat = Field(0.5, description="Seconds that an item should wait for the tower at most.")
    target_busy: float = Field(0.8, gt=0, le=1, description="Share of the time that a tower should compute at most.")

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _known(value, EncoderSettings)


class LanguagePart(_Part):
    """The language services, behind Serve's proxy, and scaled by their open requests."""

    target_ongoing_requests: PositiveFloat = Field(32.0, description="Open requests that a language service should have.")
    max_ongoing_requests: PositiveInt = Field(
        4096, description="Open requests that Serve gives to one; more than its own limits, so that its own 503 answers."
    )
    max_queued_requests: PositiveInt = Field(
        1024, description="Requests that wait in one proxy while no replica takes any; past it Serve answers 503."
    )
    graceful_shutdown_timeout_s: PositiveFloat = Field(
        120.0, description="Seconds that open answers have to end when a replica goes; then they are cut off."
    )
    engine_patience_s: PositiveFloat = Field(
        120.0, description="Seconds that an engine may be away, as when it restarts itself, until the replica is replaced."
    )

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _known(value, LanguageSettings)


class FleetOptions(_Options):
    """The whole fleet. ``model``, ``secret_file`` and ``plain_seam`` are settings of both services."""

    model: str = Field(
        DEMO_MODEL, validate_default=True, description="Checkpoint: a folder that all nodes have, or a name on the model hub."
    )
    secret_file: Path | None = Field(None, description="The deployment's secret, a file that all nodes have.")
    plain_seam: bool = Field(False, description="Let the services talk without keys between machines too.")
    encoders: EncoderPart = Field(default_factory=EncoderPart)
    languages: LanguagePart = Field(default_factory=LanguagePart)

    @field_validator("model")
    @classmethod
    def _whole_path(cls, value: str) -> str:
        """Replicas run in folders of Ray's, so that no path may depend on where one is."""
        if Path(value).is_dir():
            return str(Path(value).resolve())
        return str(_ROOT / value) if value == DEMO_MODEL else value

    def given(self, part: EncoderPart | LanguagePart) -> dict[str, Any]:
        """The settings of a service of ``part``: its own, and those that are both services'. What the arguments leave out is
        for the environment to say; the model has a default of the fleet's own where that says nothing either."""
        given = self.model_fields_set & _SHARED
        if "EPD_MODEL" not in os.environ:
            given = given | {"model"}
        return {name: getattr(self, name) for name in given} | part.settings


def _known(given: dict[str, Any], kind: type[ServiceSettings]) -> dict[str, Any]:
    unknown = sorted(given.keys() - kind.model_fields.keys())
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no settings of {kind.__name__}; they are written as in 'max_items'")
    return given
