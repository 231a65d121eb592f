"""One attempt: one call to one encoder for its share of a request, and the wait for what it sends."""

from __future__ import annotations

import asyncio
from typing import Any

from services.language.embeddings.dispatch import Dispatcher, item_of
from services.language.embeddings.encoder import Share
from services.language.embeddings.job import Job
from services.language.embeddings.receiver import Receiver, Wait
from shared.control import EncodeRequest, EncodeResponse
from shared.errors import EmbeddingIncomplete, EpdError
from shared.tracing import NO_TRACES, Tracer

_LEAST_TIME = 0.001


class Attempts:
    """Runs attempts. ``grace`` is how long, in seconds, an item may come after the encoder said that all were sent."""

    def __init__(self, dispatcher: Dispatcher, receiver: Receiver, grace: float, tracer: Tracer = NO_TRACES) -> None:
        self._tracer = tracer
        self._dispatcher = dispatcher
        self._receiver = receiver
        self._grace = grace
        self._closing: set[asyncio.Task[EncodeResponse]] = set()

    async def run(self, job: Job, share: Share) -> None:
        """Returns when all items of the share arrived and verified. Those that did are in ``job.items``, also on failure.

        Raises:
            ClientError: the media is at fault.
            Unavailable: with the reason why not all came.
        """
        number = next(job.numbers)
        indices = [source.index for source in share.sources]
        call = EncodeRequest(
            request_id=job.wire_id,
            attempt=number,
            num_items=len(job.media),
            items=tuple(item_of(source) for source in share.sources),
            reply_to=share.encoder.reply_to,
            timeout=max(_LEAST_TIME, job.deadline.left()),
            token_budget=job.tokens_left,
        )
        with (
            self._tracer.span("encode", kind="client", encoder=share.encoder.url, attempt=number, items=len(indices)) as span,
            self._receiver.expect(job.wire_id, number, indices, job.holding, job.arrived) as wait,
            share.encoder.asked(wait),
        ):
            span.set(encoder_id=share.encoder.encoder_id)
            headers = {**job.forwarded, **span.headers()}
            answer = asyncio.create_task(
                self._dispatcher.encode(share.encoder.url, call, share.sources, headers), name=f"encode {number}"
            )
            try:
                await self._until_all_are_here(wait, answer, len(job.media))
                give_up = self._grace
            except BaseException:
                give_up = 0.0
                raise
            finally:
                self._let_end(answer, give_up)
            span.set(code="ok")

    async def _until_all_are_here(self, wait: Wait, answer: asyncio.Task[EncodeResponse], expected: int) -> None:
        either: list[asyncio.Future[Any]] = [answer, wait.done]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not wait.done.done():
            try:
                # The open response is a lease on the encoder: if it breaks, this raises at once.
                await answer
            except EpdError:
                # Once everything came, what happens to the encoder is of no consequence.
                if not wait.received.is_set():
                    raise
            await self._stragglers(wait, expected)
        # What came is verified in its turn; the deadline bounds that too.
        await wait.done

    async def _stragglers(self, wait: Wait, expected: int) -> None:
        """Items may overtake the response or come a little after it; as long as they come, the rest is waited for."""
        received = asyncio.create_task(wait.received.wait())
        either: list[asyncio.Future[Any]] = [received, wait.done]
        try:
            while not wait.done.done() and not wait.received.is_set():
                missing = len(wait.missing)
                await asyncio.wait(either, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
                if len(wait.missing) == missing and not wait.done.done():
                    raise EmbeddingIncomplete(
                        f"The encoder said that it was done, but {missing} of {expected} embeddings never came; "
                        "nothing was computed locally instead."
                    )
        finally:
            received.cancel()

    def _let_end(self, answer: asyncio.Task[EncodeResponse], seconds: float) -> None:
        """The response only remains to be read, so that its connection can be used again; past ``seconds`` it is dropped."""
        give_up = asyncio.get_running_loop().call_later(seconds, answer.cancel)
        self._closing.add(answer)

        def ended(answer: asyncio.Task[EncodeResponse]) -> None:
            give_up.cancel()
            self._closing.discard(answer)
            if not answer.cancelled():
                answer.exception()  # of no consequence any more, but seen

        answer.add_done_callback(ended)
