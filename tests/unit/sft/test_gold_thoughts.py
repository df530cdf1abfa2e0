"""Explanations of comparisons: both values and the verdict, only if they imply the answer."""

import pytest

from sleuth.records import Passage, Question
from sleuth.sft.gold_thoughts import explain_comparison

TEXTS = {
    "Ada Trig": "Ada Trig (6 July 1929 – 8 August 2019) was a French film director.",
    "Bo Lind": "Bo Lind (born 3 June 1975) is a Swedish film director and actor.",
    "Cal Moor": "Cal Moor (1 May 1931 – 2 May 1990) was a French painter.",
    "Big Gap": "Big Gap is a 1964 French film directed by Ada Trig.",
    "Low Tide": "Low Tide is a 2001 Swedish film directed by Bo Lind.",
    "Death First": "Death First is a 1970 French film directed by Ada Trig.",
    "Elmo": "Elmo is a village in Norway. Its population was 1,200.",
    "Orla": "Orla is a village in Norway. Its population was 310.",
}


def passages(*titles: str) -> list[Passage]:
    return [Passage(title, f'"{title}"\n{TEXTS[title]}') for title in titles]


@pytest.mark.parametrize(
    ("text", "answer", "titles", "explanation"),
    [
        (
            "Who is younger, Bo Lind or Ada Trig?",
            "Bo Lind",
            ("Ada Trig", "Bo Lind"),
            "Bo Lind was born on 3 June 1975, and Ada Trig was born on 6 July 1929: Ada Trig was born first.",
        ),
        (
            "Who died first, Ada Trig or Cal Moor?",
            "Cal Moor",
            ("Ada Trig", "Cal Moor"),
            "Ada Trig died on 8 August 2019, and Cal Moor died on 2 May 1990: Cal Moor died first.",
        ),
        (
            "Which film has the director who was born later, Big Gap or Low Tide?",
            "Low Tide",
            ("Big Gap", "Low Tide", "Ada Trig", "Bo Lind"),
            "Ada Trig (Big Gap) was born on 6 July 1929, and Bo Lind (Low Tide) was born on 3 June 1975: "
            "Ada Trig was born first.",
        ),
        (
            "Which film came out first, Low Tide or Big Gap?",
            "Big Gap",
            ("Big Gap", "Low Tide"),
            "Low Tide came out in 2001, and Big Gap came out in 1964: Big Gap came out first.",
        ),
        (
            "Which film has the director who was born later, Death First or Low Tide?",
            "Low Tide",
            ("Death First", "Low Tide", "Ada Trig", "Bo Lind"),
            "Ada Trig (Death First) was born on 6 July 1929, and Bo Lind (Low Tide) was born on 3 June 1975: "
            "Ada Trig was born first.",
        ),
        (
            "Are Ada Trig and Bo Lind of the same nationality?",
            "no",
            ("Ada Trig", "Bo Lind"),
            "Ada Trig is French, and Bo Lind is Swedish: that is not the same.",
        ),
        (
            "Which village has more inhabitants, Elmo or Orla?",
            "Elmo",
            ("Elmo", "Orla"),
            "Elmo has 1,200 inhabitants, and Orla has 310 inhabitants: Orla has fewer.",
        ),
        (
            "Do Big Gap and Death First have the same director?",
            "yes",
            ("Big Gap", "Death First"),
            "Big Gap was directed by Ada Trig, and Death First was directed by Ada Trig: that is the same.",
        ),
        (
            "Were Big Gap and Low Tide directed by the same person?",
            "no",
            ("Big Gap", "Low Tide"),
            "Big Gap was directed by Ada Trig, and Low Tide was directed by Bo Lind: that is not the same.",
        ),
        (
            "Are Elmo and Orla in the same country?",
            "yes",
            ("Elmo", "Orla"),
            "Elmo is in Norway, and Orla is in Norway: that is the same.",
        ),
        (
            "Are Ada Trig and Cal Moor from the same country?",
            "yes",
            ("Ada Trig", "Cal Moor"),
            "Ada Trig is French, and Cal Moor is French: that is the same.",
        ),
    ],
)
def test_explanation_states_both_values(text: str, answer: str, titles: tuple[str, ...], explanation: str) -> None:
    assert explain_comparison(Question("q", text, (answer,), "s"), passages(*titles)) == explanation


@pytest.mark.parametrize(
    ("text", "answer", "titles"),
    [
        ("Who is younger, Bo Lind or Ada Trig?", "Ada Trig", ("Ada Trig", "Bo Lind")),
        ("Are Ada Trig and Bo Lind of the same nationality?", "yes", ("Ada Trig", "Bo Lind")),
        ("Who is younger, Bo Lind or Ada Trig?", "Bo Lind", ("Bo Lind",)),
        ("Who died first, Ada Trig or Bo Lind?", "Ada Trig", ("Ada Trig", "Bo Lind")),
        ("Are both Ada Trig and Bo Lind directors?", "yes", ("Ada Trig", "Bo Lind")),
        ("Where was Ada Trig born?", "Lyon", ("Ada Trig", "Big Gap")),
        ("Are Ada Trig and Eve Low of the same nationality?", "no", ("Ada Trig", "Bo Lind")),
        (
            "Do the directors of Big Gap and High Sea have the same nationality?",
            "no",
            ("Big Gap", "Ada Trig", "Bo Lind"),
        ),
        ("Who was first?", "Ada Trig", ()),
    ],
    ids=[
        "other answer",
        "other verdict",
        "one passage",
        "one value",
        "not compared",
        "no comparison",
        "another person",
        "another maker",
        "nothing",
    ],
)
def test_no_explanation_without_support_for_the_answer(text: str, answer: str, titles: tuple[str, ...]) -> None:
    assert explain_comparison(Question("q", text, (answer,), "s"), passages(*titles)) is None
