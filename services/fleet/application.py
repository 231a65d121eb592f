"""The Serve application: how replicas of both services are placed, watched, scaled and replaced."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, BackpressureConfig

from services.encoder.settings import EncoderSettings
from services.fleet.encoders import EncoderReplica
from services.fleet.languages import LanguageReplica
from services.fleet.options import EncoderPart, FleetOptions, LanguagePart
from services.fleet.policy import EncoderPolicy
from services.language.settings import LanguageSettings

# Beyond the time that a service takes to drain.
_TO_END = 10.0
# Starts that may fail in a row until Serve gives a deployment up; a wrong setting fails every time.
_STARTS = 3


def application(options: FleetOptions) -> Application:
    """Both deployments; ``options`` are handed to every replica.

    Raises:
        ValueError: a setting has no good value.
    """
    encoders, languages = options.encoders, options.languages
    drain = EncoderSettings(**options.given(encoders)).drain_timeout
    LanguageSettings(**options.given(languages))  # raises where a value is bad
    targets = {"items": encoders.items_per_replica, "wait_seconds": encoders.target_wait_s, "busy": encoders.target_busy}
    policy = AutoscalingPolicy(policy_function=EncoderPolicy, policy_kwargs=targets)
    encoder = serve.deployment(EncoderReplica).options(
        name="encoders",
        autoscaling_config=AutoscalingConfig(**_scaling(encoders), policy=policy),
        graceful_shutdown_timeout_s=drain + _TO_END,
        **_common(encoders),
    )
    language = serve.deployment(LanguageReplica).options(
        name="languages",
        autoscaling_config=AutoscalingConfig(**_scaling(languages), target_ongoing_requests=languages.target_ongoing_requests),
        max_ongoing_requests=languages.max_ongoing_requests,
        max_queued_requests=languages.max_queued_requests,
        backpressure_config=BackpressureConfig(retry_after_s=1.0),
        graceful_shutdown_timeout_s=languages.graceful_shutdown_timeout_s,
        **_common(languages),
    )
    return language.bind(options, encoder.bind(options))


def _common(part: EncoderPart | LanguagePart) -> dict[str, Any]:
    return {
        "ray_actor_options": part.needs.actor_options(),
        "health_check_period_s": part.health_check_period_s,
        "health_check_timeout_s": part.health_check_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_constructor_retry_count": _STARTS,
        "max_surge_percent": part.max_surge_percent,
    }


def _scaling(part: EncoderPart | LanguagePart) -> dict[str, Any]:
    return {
        "min_replicas": part.min_replicas,
        "max_replicas": part.max_replicas,
        "upscale_delay_s": part.upscale_delay_s,
        "downscale_delay_s": part.downscale_delay_s,
        "look_back_period_s": part.look_back_s,
        "metrics_interval_s": part.metrics_interval_s,
    }
