"""A cluster as the policies see it: the pods of a release and those around it, and machines outside."""

from __future__ import annotations

from tests.manifests.chart import NAMESPACE, Rendered
from tests.manifests.containers import container_of
from tests.manifests.policies import End

ENCODER, LANGUAGE, DATA = 8001, 8000, 5557
DNS = 53

CLIENT = End("client", "10.244.1.3", NAMESPACE, {"epd-pair/client": "true"})
STRANGER = End("stranger", "10.244.1.4", NAMESPACE, {"app": "shop"})
NEIGHBOUR = End("neighbour", "10.244.2.2", "elsewhere", {"epd-pair/client": "true"})
PROMETHEUS = End("prometheus", "10.244.3.2", "monitoring", {"app.kubernetes.io/name": "prometheus"})
NAMES = End("names", "10.244.4.2", "kube-system", {"k8s-app": "kube-dns"})
PUBLIC = End("public", "93.184.216.34")
PRIVATE = End("private", "192.168.7.7")


def pods_of(manifests: Rendered) -> tuple[End, End]:
    """An encoder and a language service of the release."""
    encoder, language = (
        End(
            component,
            address,
            NAMESPACE,
            manifests.template(component)["metadata"]["labels"],
            container_of(manifests, component).ports,
        )
        for component, address in (("encoder", "10.244.1.1"), ("language", "10.244.1.2"))
    )
    return encoder, language


def twin_of(pod: End) -> End:
    """Such a pod of another release in another namespace."""
    return End(f"other {pod.name}", "10.244.2.9", "elsewhere", pod.labels, pod.ports)
