"""Objects whose schemas Kubernetes does not have: a model of the fields that KEDA and the Prometheus operator publish, as far
as the chart may use them. Fields that are not here are refused, since the API would drop them in silence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Duration = Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m|h)$")]
Number = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?$")]


class Strict(BaseModel):
    """Types as they are written, and no further fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Meta(Strict):
    name: str
    labels: dict[str, str]


class Target(Strict):
    api_version: Literal["apps/v1"] = Field(alias="apiVersion")
    kind: Literal["Deployment", "StatefulSet"]
    name: str


class ScalingPolicy(Strict):
    type: Literal["Pods", "Percent"]
    value: int = Field(gt=0)
    period: int = Field(alias="periodSeconds", gt=0, le=1800)


class ScalingRules(Strict):
    window: int = Field(alias="stabilizationWindowSeconds", ge=0, le=3600)
    policies: list[ScalingPolicy] = Field(min_length=1)
    select: Literal["Max", "Min", "Disabled"] = Field("Max", alias="selectPolicy")


class Behavior(Strict):
    up: ScalingRules = Field(alias="scaleUp")
    down: ScalingRules = Field(alias="scaleDown")


class ScalerConfig(Strict):
    behavior: Behavior


class Advanced(Strict):
    config: ScalerConfig = Field(alias="horizontalPodAutoscalerConfig")


class PrometheusQuestion(Strict):
    """Parameters of the scaler; KEDA takes texts only."""

    server: str = Field(alias="serverAddress", pattern=r"^https?://")
    query: str
    threshold: Number
    ignore_null: Literal["true", "false"] = Field(alias="ignoreNullValues")


class Trigger(Strict):
    type: Literal["prometheus"]
    metric_type: Literal["AverageValue", "Value"] = Field(alias="metricType")
    metadata: PrometheusQuestion


class ScaledObjectSpec(Strict):
    target: Target = Field(alias="scaleTargetRef")
    least: int = Field(alias="minReplicaCount", ge=1)
    most: int = Field(alias="maxReplicaCount", ge=1)
    polling: int = Field(alias="pollingInterval", gt=0)
    triggers: list[Trigger] = Field(min_length=1)
    advanced: Advanced


class ScaledObject(Strict):
    """Of KEDA."""

    api_version: Literal["keda.sh/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ScaledObject"]
    metadata: Meta
    spec: ScaledObjectSpec


class Selector(Strict):
    match: dict[str, str] = Field(alias="matchLabels")


class Endpoint(Strict):
    port: str
    path: str
    interval: Duration


class PodMonitorSpec(Strict):
    job: str = Field(alias="jobLabel")
    selector: Selector
    endpoints: list[Endpoint] = Field(alias="podMetricsEndpoints", min_length=1)


class PodMonitor(Strict):
    """Of the Prometheus operator."""

    api_version: Literal["monitoring.coreos.com/v1"] = Field(alias="apiVersion")
    kind: Literal["PodMonitor"]
    metadata: Meta
    spec: PodMonitorSpec
