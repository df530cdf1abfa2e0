"""Sleuth's own tag agent, written with plain `openai` through the text completions API.

It samples the same tokens as the built-in agent: the gateway derives the seeds of its calls from the attempt.

Install `sleuth` and `openai`. In this folder:
`sleuth train quickstart --set agent.run=import:openai_tags.run --set agent.turns=5`
"""

import re

from openai import AsyncOpenAI

import sleuth

CLIENT = AsyncOpenAI(base_url="http://localhost", api_key="-")  # shared: a new client takes 50 ms
TURNS = 5
END = re.compile(r"</(search|answer)>")
TAG = re.compile(r"<\s*(/?)\s*(think|search|information|answer)\s*>", re.IGNORECASE)
CORRECTION = "Write <search> query </search> to search or <answer> answer </answer> to answer."


async def run(task: sleuth.Task, llm: sleuth.Endpoint) -> None:
    prompt = f"Question: {question(task)}\n"
    client = CLIENT.with_options(base_url=llm.base_url, api_key=llm.api_key)
    for turn in range(1, TURNS + 1):
        reply = await client.completions.create(
            model=llm.model,
            prompt=prompt,
            stop=["</search>", "</answer>"],
            extra_body={"include_stop_str_in_output": True},
        )
        text = reply.choices[0].text
        action, content = parse(text)
        if action == "answer" or turn == TURNS:
            return
        shown = f"No action was taken: {content}. {CORRECTION}"
        if action == "search":
            shown = await search(llm, content)
        prompt += f"{text}\n\n<information>{shown}</information>\n\n"


def question(task: sleuth.Task) -> str:
    text = task.question.question.strip()
    return text if text.endswith("?") else f"{text}?"


def parse(text: str) -> tuple[str, str]:
    """Return the action of a turn (search, answer or malformed) with its content or what is wrong with it."""
    closing = END.search(text)
    if closing is None:
        return "malformed", "neither a search nor an answer was closed"
    _, opening, content = text[: closing.start()].rpartition(f"<{closing[1]}>")
    if not opening:
        return "malformed", f"{closing[0]} closes nothing that was opened"
    if closing[1] == "search" and not content.strip():
        return "malformed", "the search is empty"
    return closing[1], content.strip()


async def search(llm: sleuth.Endpoint, query: str) -> str:
    documents = []
    for number, row in enumerate(await llm.search_async(query), 1):
        title, _, passage = TAG.sub(r"(\1\2)", row["contents"]).partition("\n")
        title = title.strip('"')
        documents.append(f"Doc {number}(Title: {title}) {passage}\n")
    return "".join(documents) or "Nothing was found.\n"
