"""The older completions API: texts go on from prompts, without messages, media, or tools."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from services.language.api.answer import Chat
from services.language.api.ask import Caller
from services.language.api.body import arrived, check_model, off_loop
from services.language.api.document import TEXT_ANSWER, TEXT_EVENTS, TEXT_FAILURES, TIMEOUT_PARAMETER, answers
from services.language.api.numbers import blamed_on, validate_numbers
from services.language.api.text_answer import TextAnswer, TextCompletion
from services.language.api.text_request import MAX_TOKENS, CompletionRequest
from services.language.completion import Completion
from services.language.deadline import Deadline
from services.language.prompt.conversation import Conversation
from services.language.request import ChatRequest
from shared.http import component_schemas, schema_ref, span_of, unless_gone
from shared.openapi import json_body

COMPLETIONS_PATH = "/v1/completions"


def install_completion_routes(
    app: FastAPI, model_name: str, request_timeout: float, body_timeout: float, keepalive: float
) -> None:
    """Adds ``COMPLETIONS_PATH`` to ``app``, whose ``state.chat`` is a ``Chat`` once it is up."""

    @app.post(
        COMPLETIONS_PATH,
        tags=["answers"],
        summary="Go on from texts",
        response_model=TextCompletion,
        responses=answers(TEXT_ANSWER, TextCompletion, TEXT_EVENTS) | TEXT_FAILURES,
        openapi_extra=json_body(schema_ref(CompletionRequest)) | TIMEOUT_PARAMETER,
    )
    async def completions(request: Request) -> Response:
        chat: Chat = app.state.chat
        caller = Caller.of(request, request_timeout)
        with chat.admitted():
            raw = await arrived(request, caller.deadline, body_timeout)
            most = max(MAX_TOKENS, chat.context_length)
            body = await off_loop(validate_numbers, raw, CompletionRequest, "prompt", most)
            del raw
            check_model(body.model, model_name)
            span_of(request).set(stream=body.stream, prompts=len(body.prompts()))

            async def respond() -> Response:
                echoes = [await echo_of(chat, prompt, caller.deadline) for prompt in body.prompts()] if body.echo else []
                answer = TextAnswer(chat, model_name, body, echoes, request.scope, keepalive)
                started = await start_all(chat, calls_of(body, caller))
                return await (answer.streamed(started) if body.stream else answer.whole(started))

            return await unless_gone(request, respond())

    component_schemas(app, CompletionRequest)


def calls_of(body: CompletionRequest, caller: Caller) -> list[ChatRequest]:
    """What is asked of the pair: one request a prompt, in order."""
    return [
        ChatRequest(
            request_id=caller.request_id,
            conversation=Conversation([]),
            stops=body.stop,
            max_tokens=body.token_limit,
            sampling=body.sampling(),
            deadline=caller.deadline,
            ignore_eos=body.ignore_eos,
            answers=body.n,
            tenant=caller.tenant,
            text=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=None if isinstance(prompt, str) else prompt,
            special_tokens=body.add_special_tokens,
            with_stop=body.include_stop_str_in_output,
            answer_format=body.answer_format(),
            plain=True,
        )
        for prompt in body.prompts()
    ]


async def start_all(chat: Chat, calls: list[ChatRequest]) -> list[Completion]:
    """The completions of all prompts, in order; of none, where one cannot be had.

    Raises:
        ClientError, Unavailable: as ``Chat.start``.
    """
    started: list[Completion] = []
    try:
        for at, call in enumerate(calls):
            with blamed_on("prompt" if len(calls) == 1 else f"prompt.{at}"):
                started += await chat.start(call)
    except BaseException:
        for completion in started:
            await completion.aclose()
        raise
    return started


async def echo_of(chat: Chat, prompt: str | list[int], deadline: Deadline) -> str:
    """The text of a prompt.

    Raises:
        InvalidRequest: it has too many tokens, or such that do not exist.
        EngineOverloaded: the ``deadline`` passed.
    """
    if isinstance(prompt, str):
        return prompt
    with blamed_on("prompt"):
        return await chat.detokenize(prompt, deadline)
