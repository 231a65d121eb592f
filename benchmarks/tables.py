"""The tables of a run, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.floor import BATCH, Floor
from benchmarks.scenarios import Load, Measured
from benchmarks.targets import PEERS, Result, ms


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of one table."""
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def target_table(runs: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Every target of every model, met or not."""
    heads = ("model", "what", "target", "measured", "ratio to floor", "met")

    def rows() -> Iterator[Sequence[str]]:
        for model, results in runs.items():
            for result in results:
                ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
                yield model, result.name, result.target, result.measured, ratio, "yes" if result.met else "**no**"

    return table(heads, rows())


def load_table(runs: Mapping[str, Measured]) -> Iterator[str]:
    """Every load, with the cores that each process kept busy."""
    heads = (
        "model", "load", "streams", "requests/s", "TTFT p50", "p99", "time per token p50", "p99", "output tokens/s",
        "completed", "failed", "cores: language + encoder + driver",
    )  # fmt: skip

    def row(model: str, name: str, load: Load) -> Sequence[str]:
        report = load.report
        failed = ", ".join(f"{status}: {count}" for status, count in report.statuses.items() if status != "200") or "0"
        return (
            model, name, str(report.concurrency), f"{report.requests_per_second:.2f}", ms(report.ttft_p50), ms(report.ttft_p99),
            ms(report.tpot_p50), ms(report.tpot_p99), f"{report.tokens_per_second:.0f}", str(report.completed), failed,
            f"{load.language_cores:.2f} + {load.encoder_cores:.2f} + {report.driver_cpu:.2f}",
        )  # fmt: skip

    def rows() -> Iterator[Sequence[str]]:
        for model, measured in runs.items():
            yield from (row(model, "text", load) for load in measured.text.values())
            yield from (row(model, "picture 512x512", load) for load in measured.pictures.values())
            yield from (row(model, f"text of {tokens} tokens", load) for tokens, load in measured.context.items())

    return table(heads, rows())


def floor_table(floors: Mapping[str, Floor]) -> Iterator[str]:
    """The floors of the same run."""
    rows: list[Sequence[str]] = [
        ("JPEG decoding (not counted in TTFT)", *(ms(floor.jpeg) for floor in floors.values())),
        ("stock PIL preprocessing", *(ms(floor.preprocess) for floor in floors.values())),
        ("tower", *(ms(floor.tower) for floor in floors.values())),
        ("prefill, a picture and text", *(ms(floor.prefill) for floor in floors.values())),
        ("TTFT (the three before)", *(ms(floor.ttft) for floor in floors.values())),
        ("a token after a picture, batch 1", *(ms(floor.decode) for floor in floors.values())),
        (f"the same, batch {BATCH}", *(_batch(floor.decode_batch) for floor in floors.values())),
        ("prefill, text only", *(ms(floor.text_prefill) for floor in floors.values())),
        ("a token after text, batch 1", *(ms(floor.text_decode) for floor in floors.values())),
        (f"the same, batch {BATCH}", *(_batch(floor.text_decode_batch) for floor in floors.values())),
    ]
    return table(("floor, median", *(f"{name}, {floor.threads} thread(s)" for name, floor in floors.items())), rows)


def peer_table() -> Iterator[str]:
    """The figures that targets quote."""
    rows = [(peer.name, peer.load, f"{peer.requests_per_second:g}") for peer in PEERS]
    return table(("peer, measured elsewhere", "load", "requests/s"), rows)


def _batch(seconds: float) -> str:
    return f"{ms(seconds)} ({BATCH / seconds:.0f} tokens/s)"
