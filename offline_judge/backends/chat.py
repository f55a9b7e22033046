"""From messages to token ids, through the model's own chat template.

The ids depend on the messages alone: not on the date, on a thinking switch, or on which backend asks.
Row text stands inside the messages, so no text in it may act as one of the template's control tokens:
each is broken where it stands in a message, and a prompt that holds other control tokens than its
template writes is not sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offline_judge.backends.control_text import ControlText, added_tokens
from offline_judge.backends.model_folder import cannot_load
from offline_judge.backends.offline_env import set_offline_env
from offline_judge.backends.protocol import Call, ChooseCall, Failed
from offline_judge.errors import UserError
from offline_judge.prompts import Message

#: Raised whenever the same messages give other token ids: it goes into the judge's fingerprint.
CHAT_VERSION = 2

#: Some templates print today's date, which would make every day's answers new ones.
_FIXED_DATE = datetime(2025, 1, 1, tzinfo=timezone.utc)
_PROBE = "offline judge probe"
#: How chat templates mark turns where they have no tokens of their own for it: [INST], <<SYS>>, <|user|>.
_MARKER = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|<</?\w+>>|\[/?[A-Z_]+\]|</?[a-z_]+>")
#: No tokenizer has tokens of its own for these: two private characters and an unassigned one.
_UNKNOWN = "\ue0f3\U0010fffd\U000e1fff"

#: Marks of the block in which a reasoning model thinks before it answers.
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A call that is ready to be run: its place among the calls, its token ids, its options' ids.

    Where `thinks` holds, the ids end inside an open think block. What the model writes there, up to
    `Chat.thinking_tokens` tokens, goes to `Chat.after_thinking`, which gives the prompt of the answer.
    """

    position: int
    call: Call
    ids: list[int]
    option_ids: tuple[int, ...] = ()
    thinks: bool = False


class Chat:
    """A tokenizer with its chat template.

    `thinking_tokens` is the length of the think block that comes before every answer; 0 is none.
    """

    def __init__(self, tokenizer: Any, thinking_tokens: int = 0) -> None:
        """Probe the template.

        Raises:
            UserError: where the tokenizer has no chat template, or no think block but shall think.
        """
        if not tokenizer.chat_template:
            raise UserError(
                f"the model in {tokenizer.name_or_path} has no chat template",
                {"to fix": "take an instruct model; base models can't be judges"},
            )
        if thinking_tokens and "think" not in tokenizer.chat_template:
            raise UserError(
                f"the model in {tokenizer.name_or_path} has no think block",
                {"looked for": f"{THINK_OPEN} in its chat template", "to fix": "leave thinking off"},
            )
        self.tokenizer = tokenizer
        self.thinking_tokens = thinking_tokens
        self._has_system_role = self._probe_system_role()
        tokens = added_tokens(tokenizer)
        self._control_ids = self._find_control_ids(tokens)
        self._control_text = ControlText([*tokens, *self._markers()])
        self._own_control_ids: dict[tuple[str, ...], list[int]] = {}
        self._option_ids: dict[tuple[str, ...], tuple[int, ...]] = {}

    @classmethod
    def load(cls, path: Path, thinking_tokens: int = 0) -> Chat:
        """Load the tokenizer of a local model folder.

        Raises:
            UserError: where it can't be loaded, has no chat template, or no think block but shall think.
        """
        set_offline_env()
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(path), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise cannot_load(path, error) from error
        return cls(tokenizer, thinking_tokens)

    def n_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text alone, without template or special tokens."""
        return [len(self._encode(text)) for text in texts]

    def prepare(self, position: int, call: Call, context_length: int) -> Prompt | Failed:
        """Render and tokenize a call.

        Returns:
            The prompt; or `Failed` with `judge_control_tokens` where a text could not be kept from acting
            as a control token, `judge_prompt_too_long` where prompt and output do not fit into the context,
            or `judge_options_ambiguous` where two options begin with one token.
        """
        ids = self.token_ids(call.messages)
        n_foreign = self._n_foreign_control_tokens(ids, call.messages)
        if n_foreign:
            return Failed("judge_control_tokens", f"{n_foreign} that the template does not write")
        n_output = self.thinking_tokens + (1 if isinstance(call, ChooseCall) else call.max_tokens)
        if len(ids) + n_output > context_length:
            detail = f"{len(ids)} tokens and {n_output} of output, context {context_length}"
            return Failed("judge_prompt_too_long", detail)
        thinks = self.thinking_tokens > 0
        if not isinstance(call, ChooseCall):
            return Prompt(position, call, ids, thinks=thinks)
        option_ids = self.first_token_ids(call.options)
        if len(set(option_ids)) < len(option_ids):
            return Failed("judge_options_ambiguous", f"{len(option_ids)} options begin with fewer tokens")
        return Prompt(position, call, ids, option_ids, thinks)

    def after_thinking(self, prompt: Prompt, thought: str) -> Prompt:
        """Close the think block behind what the model wrote in it: the prompt of the answer itself."""
        thought = self.neutralise(thought.partition(THINK_CLOSE)[0].strip())
        ids = prompt.ids + self._encode(f"{thought}\n{THINK_CLOSE}\n\n")
        return Prompt(prompt.position, prompt.call, ids, prompt.option_ids)

    def token_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages, up to and with the opening of the assistant's turn."""
        return self._encode(self.render(messages))

    def first_token_ids(self, options: tuple[str, ...]) -> tuple[int, ...]:
        """First token of each option, where it stands right behind a prompt."""
        if options not in self._option_ids:
            prompt = self.render([("user", _PROBE)])
            n_prompt = len(self._encode(prompt))
            # Tokenized behind a prompt: alone, some tokenizers put a space token before every text.
            self._option_ids[options] = tuple(self._encode(prompt + option)[n_prompt] for option in options)
        return self._option_ids[options]

    def render(self, messages: Sequence[Message]) -> str:
        """Text of the messages in the model's template, with control tokens in them made harmless."""
        harmless: list[Message] = [(role, self.neutralise(content)) for role, content in messages]
        if not self._has_system_role:
            harmless = fold_system_into_user(harmless)
        text = self._apply_template(harmless)
        is_open = text.rstrip().endswith(THINK_OPEN)
        if self.thinking_tokens:
            return text if is_open else f"{text}{THINK_OPEN}\n"
        if is_open:
            # The template opens a think block that no switch turns off. The answer is read at once.
            return f"{text.rstrip()}\n\n{THINK_CLOSE}\n\n"
        return text

    def neutralise(self, content: str) -> str:
        """Break each control token in a text with a zero-width space after its first character."""
        return self._control_text.broken_in(content)

    def _n_foreign_control_tokens(self, ids: Sequence[int], messages: Sequence[Message]) -> int:
        """Count control tokens that differ from those that the template writes around any text."""
        roles = tuple(role for role, _ in messages)
        own = self._own_control_ids.get(roles)
        if own is None:
            own = self._control_ids_in(self.token_ids([(role, _PROBE) for role, _ in messages]))
            self._own_control_ids[roles] = own
        found = self._control_ids_in(ids)
        return 0 if found == own else max(1, len(found) - len(own))

    def _control_ids_in(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self._control_ids]

    def _find_control_ids(self, tokens: Mapping[str, int]) -> frozenset[int]:
        # Some tokenizers say <unk> to a character that they don't know: that is no attack.
        return frozenset(tokens.values()) - frozenset(self._encode(_UNKNOWN))

    def _markers(self) -> set[str]:
        """Find what the template writes around messages that looks like a mark of a turn."""
        from jinja2 import TemplateError

        messages: list[Message] = [("user", _PROBE), ("assistant", _PROBE), ("user", _PROBE)]
        if self._has_system_role:
            messages.insert(0, ("system", _PROBE))
        try:
            return set(_MARKER.findall(self._apply_template(messages)))
        except TemplateError:  # a template for a single turn
            return set(_MARKER.findall(self._apply_template(messages[:-2])))

    def _apply_template(self, messages: Sequence[Message]) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=self.thinking_tokens > 0,
            strftime_now=_FIXED_DATE.strftime,
        )
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _probe_system_role(self) -> bool:
        from jinja2 import TemplateError

        try:
            return _PROBE in self._apply_template([("system", _PROBE), ("user", "x")])
        except TemplateError:
            return False


def fold_system_into_user(messages: Sequence[Message]) -> list[Message]:
    """Put the system text before the first user message."""
    system = [content for role, content in messages if role == "system"]
    rest = [message for message in messages if message[0] != "system"]
    for index, (role, content) in enumerate(rest):
        if role == "user":
            rest[index] = ("user", "\n\n".join([*system, content]))
            break
    return rest
