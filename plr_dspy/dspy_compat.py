"""All imports of undocumented DSPy names, and DSPy's defaults.

Look here first if a new version of DSPy breaks this package.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from io import StringIO
from traceback import walk_tb
from typing import Any, Literal, TypeAlias, get_args, get_origin

import dspy
from dspy.adapters.decision import DecisionAdapter, resolve_adapter
from dspy.adapters.types.base_type import (
    CUSTOM_TYPE_END_IDENTIFIER,
    CUSTOM_TYPE_START_IDENTIFIER,
    split_message_content_for_custom_types,
)
from dspy.adapters.types.decision import Choice, Noul
from dspy.adapters.utils import (
    annotation_allows_none,
    apply_output_field_defaults,
    format_field_value,
    parse_value,
    serialize_for_json,
)
from dspy.clients._litellm import get_litellm
from dspy.clients.engines.base import validate_request
from dspy.clients.engines.litellm_errors import litellm_errors
from dspy.predict.parameter import Parameter
from dspy.predict.predict import UNSAFE_LM_STATE_KEYS, serialize_object
from dspy.primitives.base_module import BaseModule
from dspy.primitives.module import set_attribute_by_name
from dspy.primitives.repl_types import REPLHistory
from dspy.propose.dataset_summary_generator import create_dataset_summary
from dspy.propose.grounded_proposer import TIPS, GroundedProposer
from dspy.propose.utils import get_dspy_source_code
from dspy.teleprompt.gepa import InstructionProposer
from dspy.teleprompt.gepa.instruction_proposal import compact_history, compact_repl_history
from dspy.teleprompt.teleprompt import Teleprompter
from dspy.utils import magicattr
from dspy.utils.callback import ACTIVE_CALL_ID, BaseCallback
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError, LMUnsupportedFeatureError
from dspy.utils.hasher import Hasher
from dspy.utils.usage_tracker import UsageTracker

logger = logging.getLogger(__name__)

Call: TypeAlias = tuple[Any, Mapping[str, Any]]  # a language model, and the inputs of one call to the model
COMPILED = "_compiled"  # the attribute that marks a compiled program
LM_CLASS = "_dspy_lm_class"  # the entry of a saved model that names its class


def allows_none(annotation: Any) -> bool:
    """Return whether a type allows None. Unlike DSPy's function, also find None in a Literal."""
    if get_origin(annotation) is Literal:
        return None in get_args(annotation)
    return bool(annotation_allows_none(annotation))


def current_adapter() -> dspy.Adapter:
    """Return the configured adapter. As in DSPy, the default is `ChatAdapter`."""
    return dspy.settings.adapter or dspy.ChatAdapter()


def model_of(predictor: dspy.Predict) -> Any:
    """Return the predictor's own model, or else the configured model. Return None if neither is set."""
    return predictor.lm or dspy.settings.lm


def is_compiled(program: object) -> bool:
    """Return whether a program is marked as compiled."""
    return bool(getattr(program, COMPILED, False))


def set_compiled(program: dspy.Module, value: bool) -> None:
    """Mark a program as compiled or as not compiled."""
    program._compiled = value


def has_inputs(example: dspy.Example) -> bool:
    """Return whether an example's inputs were declared by `with_inputs`."""
    return bool(getattr(example, "_input_keys", None))


def decision_adapter(predictor: dspy.Predict) -> DecisionAdapter | None:
    """Return the adapter for a predictor's decisions, such as a `Choice`, or None if no output is a decision."""
    lm = model_of(predictor)
    adapter = current_adapter()
    resolved = resolve_adapter(lm, adapter, predictor.signature, predictor.fields, predictor.signature)
    return resolved if isinstance(resolved, DecisionAdapter) else None


def rendered_signature(predictor: dspy.Predict) -> type[dspy.Signature]:
    """Return the signature that the adapter renders, without fields that the model handles natively."""
    signature: type[dspy.Signature] = predictor.signature
    lm = model_of(predictor)
    adapter = current_adapter()
    if lm is None or not hasattr(adapter, "_call_preprocess"):
        return signature
    no_tools: dict[str, list[Any]] = {name: [] for name in signature.input_fields}
    rendered: type[dspy.Signature] = adapter._call_preprocess(
        lm, dict(predictor.config), signature, no_tools
    )
    return rendered


def field_not_found(error: BaseException, example: dspy.Example) -> str | None:
    """Return the missing field's name if an error was raised because `example` lacks a field.

    Return None for any other error, such as an error raised by an example nested in `example`.
    """
    if not isinstance(error, (AttributeError, KeyError)):
        return None
    *_, (frame, _) = walk_tb(error.__traceback__)
    # `key` is the parameter of `dspy.Example.__getattr__` and `__getitem__` for the field's name.
    name = frame.f_locals.get("key")
    return name if frame.f_locals.get("self") is example and isinstance(name, str) else None


def source_code_of(program: dspy.Module) -> str:
    """Return the source code that `GroundedProposer` shows to the prompt model, or "" if it shows none."""
    # DSPy prints the source code of signatures, so discard its output.
    with suppress(Exception), redirect_stdout(StringIO()):
        return str(get_dspy_source_code(program))
    return ""


class _Sent(BaseException):
    """An exception that carries a call's messages. Adapters catch only `Exception`, so they do not retry."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        super().__init__()
        self.messages = messages


def _that_only_raises(lm: dspy.BaseLM) -> dspy.BaseLM:
    """Return a copy of `lm` that has the same capabilities but raises `_Sent` when called."""

    def send(self: dspy.BaseLM, prompt: Any = None, *, messages: Any = None, **options: Any) -> None:
        raise _Sent(messages)

    copy = lm.copy()
    copy.__class__ = type(type(lm).__name__, (type(lm),), {"__call__": send})
    return copy


def sent_messages(predictor: dspy.Predict, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that a predictor would send for `inputs`, without calling a language model.

    If no language model is configured, assume a model without native features.
    """
    lm = model_of(predictor) or dspy.BaseLM("none")
    return first_messages(lm, lambda copy: dspy.Predict.forward(predictor, lm=copy, **inputs))


def first_messages(lm: dspy.BaseLM, call: Callable[[dspy.BaseLM], object]) -> list[dict[str, Any]]:
    """Return the first messages that `call` would send to `lm`, without calling a language model.

    `call` gets a copy of `lm` that only raises an exception.
    """
    with dspy.context(callbacks=[], warn_on_type_mismatch=False):
        try:
            call(_that_only_raises(lm))
        except _Sent as sent:
            return sent.messages
    raise RuntimeError(
        f"the adapter {dspy.settings.adapter!r} sent no messages to the language model: use another adapter"
    )


def call_back(optimizer: Teleprompter, event: str, outputs: object) -> None:
    """Call the method `event` of each DSPy callback that has this method.

    DSPy itself does not report the progress of `compile()`. The method gets the arguments that DSPy
    passes at the end of a call, with the call ID of `compile()`.
    """
    callbacks = [*(dspy.settings.callbacks or []), *getattr(optimizer, "callbacks", [])]
    for callback in callbacks:
        handler = getattr(callback, event, None)
        if handler is None:
            continue
        try:
            handler(call_id=ACTIVE_CALL_ID.get(), outputs=outputs, exception=None)
        except Exception as error:  # DSPy also continues after an error in a callback.
            logger.warning(
                "%s of the callback %r raised %s: %s", event, callback, type(error).__name__, error
            )


def with_caller(caller: object) -> dict[str, list[Any]]:
    """Return DSPy settings under which DSPy also appends each LM call to the `history` of `caller`."""
    return {"caller_modules": [caller, *(dspy.settings.caller_modules or [])]}


def current_caller() -> object:
    """Return the module that is making an LM call, or None."""
    callers = dspy.settings.caller_modules
    return callers[-1] if callers else None


class TruncationCounter:
    """A counter of truncated replies.

    Make the LM calls in a context with the settings that `with_caller(counter)` returns. DSPy
    appends each call to its callers' histories, unless the user has disabled DSPy's history. The
    counter serves as its own history, but stores no entries.

    Attributes:
        num_truncated: Number of truncated replies.
    """

    def __init__(self) -> None:
        self.num_truncated = 0
        self.history = self

    def __len__(self) -> int:
        return 0

    def append(self, entry: Mapping[str, Any]) -> None:
        """Count the truncated replies in a history entry.

        Ignore entries without a response: custom LMs may add them.
        """
        response = entry.get("response")
        replies = response if isinstance(response, tuple) else [response]
        for reply in replies:
            # DSPy's own engines return one reply, but litellm returns a list of choices.
            choices = getattr(reply, "choices", None) or [reply]
            self.num_truncated += any(
                getattr(choice, "finish_reason", "") == "length" for choice in choices
            )


def drop_from_memory_cache(calls: Iterable[Call]) -> None:
    """Remove replies to `calls` from DSPy's memory cache if the replies are also in its disk cache."""
    cache = dspy.cache
    if not (cache.enable_disk_cache and cache.enable_memory_cache):
        return
    # If DSPy lacks a name used below, leave the replies in the memory cache.
    with suppress(Exception):
        from dspy.clients.execution import IGNORED_CACHE_KEYS, prepare

        for lm, inputs in calls:
            call = prepare(lm, inputs.get("prompt"), inputs.get("messages"), inputs.get("kwargs", {}))
            if not call.cache:
                continue
            for is_async in (False, True):
                key = cache.cache_key(call.key(lm, is_async), IGNORED_CACHE_KEYS)
                if key in cache.disk_cache:
                    with cache._lock:
                        cache.memory_cache.pop(key, None)
