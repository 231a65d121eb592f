"""Containers that change the network of other containers: they come, run commands of ``tc`` and ``iptables``, and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound

from services.loadtest.deployment import network
from services.loadtest.deployment.network import Command, Conditions
from services.loadtest.deployment.route import CannotDo

# Device of the container, and the number that its other end has on the host, where it hangs on the bridge.
_LINKS = 'for d in /sys/class/net/*; do n=${d##*/}; [ "$n" = lo ] || echo "$n $(cat "$d/iflink")"; done'
_OUTSIDE = 'for d in /sys/class/net/*; do [ "$(cat "$d/ifindex")" = %s ] && echo "${d##*/}"; done; true'


class Helper:
    """Runs commands in the network namespace of a container, or of the host. ``image`` must have ``tc`` and ``iptables``."""

    def __init__(self, engine: docker.DockerClient, image: str) -> None:
        self._engine = engine
        self._image = image
        self._netem: bool | None = None

    def obstacle(self) -> str:
        """Why it cannot work, in one sentence; empty where it can."""
        try:
            self._engine.images.get(self._image)
        except ImageNotFound:
            return (
                f"it needs an image with tc and iptables: build {self._image}, which is missing, or name one by --helper-image"
            )
        except APIError as error:
            return f"the Docker engine does not tell about its images: {error.explanation or error}"
        return ""

    def trial(self, conditions: Conditions | None) -> str:
        """Why the kernel cannot make these conditions, or with None a partition; empty where it can."""
        if conditions is None:
            commands = network.partition()
        elif conditions.delays and not self.has_netem():
            return network.NO_NETEM
        else:
            netem = self.has_netem()
            commands = [*network.lose(conditions, netem), *network.shape("lo", conditions, netem)]
        try:
            self._run(network.script(commands), "none")
        except CannotDo as error:
            return f"the kernel cannot do it: {error}"
        return ""

    def has_netem(self) -> bool:
        """Whether the kernel has netem."""
        if self._netem is None:
            try:
                self._run(network.script([network.PROBE]), "none")
                self._netem = True
            except CannotDo:
                self._netem = False
        return self._netem

    def partition(self, container: str) -> None:
        """No packet passes to or from it any more."""
        self._run(network.script(network.partition()), f"container:{container}")

    def heal(self, container: str) -> None:
        """They pass again."""
        self._run(network.script(network.heal()), f"container:{container}")

    def slow(self, container: str, conditions: Conditions) -> None:
        """Its network is so."""
        netem = self.has_netem()
        self._both_ends(container, network.lose(conditions, netem), lambda device: network.shape(device, conditions, netem))

    def restore(self, container: str, conditions: Conditions) -> None:
        """Its network is so no more."""
        netem = self.has_netem()
        commands = network.lose_no_more(conditions, netem)
        self._both_ends(container, commands, lambda device: network.unshape(device, conditions, netem))

    def _both_ends(self, container: str, commands: Sequence[Command], of_device: Any) -> None:
        inside = f"container:{container}"
        links = [line.split() for line in self._run(_LINKS, inside).splitlines()]
        shaped = [command for device, _ in links for command in of_device(device)]
        self._run(network.script([*commands, *shaped]), inside)
        if not shaped:
            return
        for _, number in links:
            device = self._run(_OUTSIDE % number, "host").strip()
            if not device:
                raise CannotDo(f"the host has no device {number}, the other end of the container's; is it on a bridge?")
            self._run(network.script(of_device(device)), "host")

    def _run(self, line: str, where: str) -> str:
        """What a shell writes that runs ``line`` as root of a network namespace and of nothing else."""
        try:
            container = self._engine.containers.create(
                self._image,
                entrypoint=["sh", "-c"],
                command=[line],
                network_mode=where,
                user="0",
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN", "NET_RAW"],
            )
            try:
                container.start()
                status = container.wait(timeout=30)["StatusCode"]
                written = container.logs(stdout=status == 0, stderr=status != 0).decode(errors="replace")
            finally:
                container.remove(force=True)
        except APIError as error:
            raise CannotDo(f"no container could be run for {line}: {error.explanation or error}") from error
        if status != 0:
            raise CannotDo(f"{line}: {written.strip() or f'status {status}'}")
        return str(written)
