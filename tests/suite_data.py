"""Small files in the forms that the suites read, made here: none of the originals' text."""

from __future__ import annotations

import json
from pathlib import Path

ESSAY = " ".join(
    f"Essay sentence number {i} says that {word} matters. Is it so?"
    for i, word in enumerate(["work", "taste", "time", "luck", "craft", "doubt"])
)

COURSERA = {
    "input": "The course text. " * 30,
    "instructions": ["Which hold? A. one B. two C. three D. four", "And here? A. x B. y"],
    "outputs": ["ABD", "B"],
    "evaluation": "exam",
    "source": "coursera",
}
SCI_FI = {
    "input": "On this moon water flows up. " * 20,
    "instructions": [
        "Water flows up, based on the world described in the document. True or False?"
    ],
    "outputs": ["True [fact: False]"],
    "evaluation": "exam",
    "source": "scifi",
}
SQUAD = {
    "data": [
        {
            "title": f"Article {a}",
            "paragraphs": [
                {
                    "context": f"Paragraph {p} of article {a} says the mayor is Person{a}{p}.",
                    "qas": [
                        {
                            "question": f"Who is the mayor in paragraph {p} of article {a}?",
                            "answers": [{"text": f"Person{a}{p}"}, {"text": f"mayor Person{a}{p}"}],
                            "is_impossible": False,
                        },
                        {"question": "Nothing?", "answers": [], "is_impossible": True},
                    ],
                }
                for p in range(4)
            ],
        }
        for a in range(6)
    ]
}
HOTPOT = [
    {
        "question": f"Which river is near the home of Q{i}?",
        "answer": f"River{i}",
        "context": [
            [f"Q{i}", [f"Q{i} lives in Town{i}.", " It is old."]],
            [f"Town{i}", [f"Town{i} lies on River{i}."]],
        ],
    }
    for i in range(12)
]


def write_all(folder: Path) -> dict[str, Path]:
    """The files below ``folder``, by key of ``[data]``."""
    (folder / "leval").mkdir()
    lines = [json.dumps(COURSERA), json.dumps({**COURSERA, "input": "Another text. " * 40})]
    (folder / "leval" / "coursera.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "leval" / "sci_fi.jsonl").write_text(json.dumps(SCI_FI))
    (folder / "essays.txt").write_text(ESSAY)
    (folder / "squad.json").write_text(json.dumps(SQUAD))
    (folder / "hotpot.json").write_text(json.dumps(HOTPOT))
    (folder / "books").mkdir()
    for name in ("one", "two"):
        numbered = " ".join(f"{name}{i} went on and" for i in range(400))
        (folder / "books" / f"{name}.txt").write_text(numbered + " stopped.\n")
    return {
        "leval": folder / "leval",
        "essays": folder / "essays.txt",
        "squad": folder / "squad.json",
        "hotpotqa": folder / "hotpot.json",
        "text": folder / "books",
    }
