"""A token-level method, like slime's custom generate: search once for the question itself, then sample one turn."""

from sleuth.agent import prompts
from sleuth.agent.conversation import OnText
from sleuth.agent.episode import Agent
from sleuth.agent.task import Task
from sleuth.engines.base import Sampling, Session
from sleuth.errors import SearchUnavailable
from sleuth.records import Answer, Outcome, StopReason, ToolCall, Trajectory, Turn


async def search_then_answer(agent: Agent, task: Task, session: Session, on_text: OnText | None) -> Trajectory:
    """Retrieve passages for the question, show them as an observation, and sample reasoning and answer."""
    conversation = agent.conversation(session, on_text)
    conversation.begin(prompts.messages(task.question, agent.config.template, agent.protocol))
    call = ToolCall.search(task.question.question)
    hits = await agent.tools.call(call)
    if isinstance(hits, SearchUnavailable):
        return task.trajectory(StopReason.SEARCH_UNAVAILABLE, failure=str(hits))
    conversation.observe(agent.protocol.observe(call, hits), agent.config.observation_tokens)
    if conversation.room <= 0:
        return task.trajectory(StopReason.OUT_OF_TOKENS, ledger=conversation.ledger)
    turn = await conversation.generate(
        Sampling(
            max_tokens=min(agent.config.turn_tokens, conversation.room),
            temperature=task.temperature,
            stops=agent.protocol.stops,
            seed=task.turn_seed(0),
        )
    )
    answered = isinstance(turn.action, Answer)
    outcome = Outcome.ANSWERED if answered else Outcome.REFUSED
    turns = [Turn(turn.text, turn.action, outcome, turn.tokens, formed=turn.well_formed)]
    stop = StopReason.ANSWERED if answered else StopReason.OUT_OF_TURNS
    return task.trajectory(stop, turns, ledger=conversation.ledger)
