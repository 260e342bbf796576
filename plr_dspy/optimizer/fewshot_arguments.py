"""The types of the arguments that only `PLFewShot` takes."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import dspy
from pydantic import Field

Demo: TypeAlias = dspy.Example | dict[str, Any]
Texts: TypeAlias = Annotated[list[str], Field(min_length=1)]
Candidates: TypeAlias = Annotated[
    Literal["both", "labeled", "bootstrapped"] | Annotated[list[Demo], Field(min_length=1)],
    Field(description="'both', 'labeled', 'bootstrapped', or a non-empty list of demos"),
]
Instructions: TypeAlias = Annotated[
    Literal["propose"] | Texts | Annotated[dict[str, Texts], Field(min_length=1)] | None,
    Field(description="'propose', a non-empty list of strings, or a dict from predictor names to such lists"),
]
Embedder: TypeAlias = Annotated[
    Callable[..., Any] | None,
    Field(description="a dspy.Embedder or None; for example, dspy.Embedder('openai/...')"),
]
PromptModel: TypeAlias = Annotated[
    dspy.BaseLM | None, Field(description="a dspy.LM or None; for example, dspy.LM('openai/gpt-4o-mini')")
]
