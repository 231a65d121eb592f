"""What an observer sees of a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from services.loadtest.deployment.remote import RemoteDeployment
from services.loadtest.observe import Observer, gauges
from services.loadtest.run import Leftover, Sample


class Told:
    """What a server answers to ``/metrics``; without a page there is no such route."""

    def __init__(self, **values: float) -> None:
        self.page: str | None = page(**values)
        self.url = ""
        self.asked = 0


def page(**values: float) -> str:
    return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in values.items())


@contextmanager
def server(told: Told) -> Iterator[Told]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked += 1
            self.send_response(404 if told.page is None else 200)
            self.end_headers()
            self.wfile.write((told.page or "").encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        told.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield told
        finally:
            http.shutdown()
            thread.join()


def until_asked(told: Told, times: int) -> None:
    deadline = time.monotonic() + 10
    while told.asked < times:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def observed(told: Told, looks: int) -> list[Sample]:
    """The samples of so many looks, at the times 1, 2, …"""
    times = iter(range(1, 10_000))
    observer = Observer(RemoteDeployment(told.url), lambda: next(times), every=0.001)
    observer.start()
    until_asked(told, looks)
    observer.stop()
    return observer.samples


def test_what_waits_and_which_encoders_are_ready_is_sampled() -> None:
    with server(Told(epd_waits=3, epd_engine_waiting=2, epd_encoders_ready=1, epd_held_bytes=99)) as told:
        samples = observed(told, 3)
    assert len(samples) >= 2
    assert samples[0] == Sample(at=1, queued=5, encoders_ready=1)
    assert [sample.at for sample in samples] == sorted(sample.at for sample in samples)


def test_other_servers_queues_are_known_too() -> None:
    with server(Told()) as told:
        told.page = '# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name="m"} 7.0\n'
        assert observed(told, 2)[0] == Sample(at=1, queued=7, encoders_ready=None)


def test_a_server_that_tells_nothing_yields_nothing() -> None:
    with server(Told()) as told:
        told.page = None
        assert observed(told, 3) == []
        told.page = "<html>no metrics, {but a page</html>"
        assert observed(told, told.asked + 3) == []


def test_a_server_that_is_down_yields_nothing_and_no_error() -> None:
    observer = Observer(RemoteDeployment("http://127.0.0.1:9"), time.monotonic, every=0.001)
    observer.start()
    observer.stop()
    assert observer.samples == []
    assert observer.leftovers(timeout=0) == []


def test_gauges_are_summed_over_their_labels_and_counters_are_none() -> None:
    text = '# TYPE a gauge\na{x="1"} 2\na{x="2"} 3\n# TYPE b_total counter\nb_total 9\n'
    assert gauges(text) == {"a": 5}


def test_what_is_held_is_told_by_all_that_tell_it() -> None:
    with server(Told(epd_waits=2, epd_held_bytes=0, epd_cache_bytes=4096)) as told, server(Told()) as encoder:
        encoder.page = page(epd_encoder_items_in_work=1)
        observer = Observer(RemoteDeployment(told.url, (encoder.url,)), time.monotonic)
        assert observer.leftovers(timeout=0) == [
            Leftover("waits for embeddings (epd_waits of the language service)", 2),
            Leftover("bytes of embeddings held for requests (epd_held_bytes of the language service)", 0),
            Leftover("items in work (epd_encoder_items_in_work of encoder-1)", 1),
        ]


def test_what_is_let_go_of_in_time_is_held_no_more() -> None:
    with server(Told(epd_waits=2)) as told:
        found: list[Leftover] = []
        observer = Observer(RemoteDeployment(told.url), time.monotonic)
        thread = threading.Thread(target=lambda: found.extend(observer.leftovers(timeout=10)))
        thread.start()
        until_asked(told, 2)
        told.page = page(epd_waits=0)
        thread.join(10)
        assert [each.value for each in found] == [0]
