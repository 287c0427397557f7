"""User's answers to a run's questions: asked here, sent to the rank that waits."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ...errors import NodeLost, PoolError
from ...node.protocol import rpc
from ..base.event_loop import loop
from ..runs.input_requests import AskUser, Question
from ..runs.run import Run

if TYPE_CHECKING:
    from .supervisor import Supervisor


def answer_questions(run: Run, supervisor: Supervisor, ask: AskUser) -> None:
    """Pass the questions of a run's code to the user, and the answers back.

    Parameters
    ----------
    run : Run
        A run that is about to begin, and that a thread attends.
    supervisor : Supervisor
        The supervisor of its pool.
    ask : callable
        Asks the user.
    """

    def on_ask(question: Question) -> None:
        question.answer = ask(question.text, password=question.password, verbatim=True)
        question.answer.add_done_callback(lambda answer: _pass_on(answer, question))

    def _pass_on(answer: Future[str | None], question: Question) -> None:
        # In the thread that has asked, or on the loop.
        if not answer.cancelled():
            value = answer.result()
            loop().loop.call_soon_threadsafe(lambda: supervisor.do(_send(question, value)))

    async def _send(question: Question, value: str | None) -> None:
        if question.rank in run.left:
            node = run.outcomes[question.rank].node
            # A rank whose node is lost has ended, which is reported elsewhere.
            with contextlib.suppress(NodeLost, PoolError, OSError):
                await supervisor.ask(rpc.ANSWER_INPUT, [node], run=run.id, id=question.id, value=value)

    run.questions.on_ask = on_ask
