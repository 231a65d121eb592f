"""The rendered policies in force: the pair's real services in network namespaces, with the rendered variables and secret, and
the kernel's packet filter made from the policies. The pair works, and nobody else gets in."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chats import user
from tests.manifests import ends
from tests.manifests.chart import NAME, NAMESPACE, rendered
from tests.manifests.cluster import Answer, Cluster
from tests.manifests.containers import container_of, secret_value
from tests.manifests.ends import CLIENT, DATA, ENCODER, LANGUAGE, NEIGHBOUR, PRIVATE, PROMETHEUS, PUBLIC, STRANGER
from tests.manifests.policies import allowed
from tests.processes import ROOT, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")

ENDS = (*ends.pods_of(rendered("default")), CLIENT, STRANGER, NEIGHBOUR, PROMETHEUS, PUBLIC, PRIVATE)
LISTENING = {"encoder": (ENCODER,), "language": (LANGUAGE, DATA), "public": (80, 25), "private": (80,)}
SITE, INSIDE = "pictures.example", "inside.example"
API = f"http://language.example:{LANGUAGE}"
ANSWER = "A red circle at the top left and a blue square at the bottom right."
STARTS_WITHIN = 240.0


def environment_of(component: str, folder: Path) -> dict[str, str]:
    """The container's variables, with the mounted secret in a file of the test's."""
    secret = folder / "seam"
    secret.write_text(secret_value(rendered("default"), f"{NAME}-seam", "epd"))
    return {**container_of(rendered("default"), component).environment, "EPD_SECRET_FILE": str(secret), "HOME": str(folder)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The pair and its surroundings, behind the policies from the first packet on."""
    folder = tmp_path_factory.mktemp("cluster")
    addresses = {end.name: end.address for end in ENDS}
    names = {
        f"{NAME}-language-pods.{NAMESPACE}.svc.cluster.local": addresses["language"],
        "language.example": addresses["language"],
        "encoder.example": addresses["encoder"],
        SITE: addresses["public"],
        INSIDE: addresses["private"],
    }
    with Cluster(ENDS, names, folder) as made:
        made.enforce(rendered("default").of("NetworkPolicy"))
        services = {
            each: made.start(each, [sys.executable, "-m", f"services.{each}"], environment_of(each, folder))
            for each in ("encoder", "language")
        }
        for machine in ("public", "private"):
            for port in LISTENING[machine]:
                made.start(machine, [sys.executable, "-m", "http.server", str(port), "--directory", str(ROOT / "examples")], {})

        def ready() -> bool:
            for name, process in services.items():
                assert process.poll() is None, made.log(name).read_text()
            try:
                answer = made.call("client", f"{API}/ready", timeout=5)
            except ConnectionError:
                return False
            return answer.status == 200 and json.loads(answer.body)["encoders_ready"] == 1

        wait_for(ready, STARTS_WITHIN, "the registration of the encoder")
        yield made


def ask(cluster: Cluster, source: str, url: str) -> Answer:
    """A question about the picture at ``url``."""
    body = user("Describe the picture.", max_tokens=40)
    body["messages"][0]["content"].insert(0, {"type": "image_url", "image_url": {"url": url}})
    return cluster.call(source, f"{API}/v1/chat/completions", body)


@pytest.mark.timeout(600)
def test_the_kernel_lets_pass_what_the_policies_mean(cluster: Cluster) -> None:
    asked = [
        (source.name, target.name, port)
        for source in ENDS
        for target in ENDS
        for port in LISTENING.get(target.name, ())
        if source is not target
    ]
    by_name = {end.name: end for end in ENDS}
    policies = rendered("default").of("NetworkPolicy")
    meant = {each for each in asked if allowed(policies, by_name[each[0]], by_name[each[1]], each[2])}
    assert {source for source, _, port in meant if port == DATA} == {"encoder"}
    assert ("stranger", "public", 80) in meant  # who is refused could connect, were it not for the policies
    assert cluster.connections(asked) == meant


def test_a_picture_is_answered_through_them(cluster: Cluster) -> None:
    picture = base64.b64encode((ROOT / "examples" / "scene.png").read_bytes()).decode()
    answer = ask(cluster, "client", f"data:image/png;base64,{picture}")
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == ANSWER


def test_a_picture_from_outside_is_fetched_and_one_from_inside_is_not(cluster: Cluster) -> None:
    answer = ask(cluster, "client", f"http://{SITE}/scene.png")
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == ANSWER
    refused = ask(cluster, "client", f"http://{INSIDE}/scene.png")
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (400, "invalid_media")


def test_prometheus_scrapes_both(cluster: Cluster) -> None:
    assert "epd_encoder_items_in_work" in cluster.call("prometheus", f"http://encoder.example:{ENCODER}/metrics").body
    assert "epd_engine_waiting" in cluster.call("prometheus", f"{API}/metrics").body


def test_a_stranger_gets_no_answer(cluster: Cluster) -> None:
    for url in (f"{API}/health", f"http://encoder.example:{ENCODER}/health"):
        with pytest.raises(ConnectionError, match="timed out"):
            cluster.call("stranger", url, timeout=2)
