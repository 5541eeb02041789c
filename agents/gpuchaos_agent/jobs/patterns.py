"""What training loops print of their progress, by table.

Each pattern has one group, the number, and is looked for in whole lines (progress bars end theirs with a carriage
return). The first pattern that finds anything wins, and of what it finds the last. The formats are those of
Megatron-LM and NeMo, DeepSpeed, Hugging Face's Trainer, Lightning and tqdm, torchtitan, nanoGPT, Composer (MosaicML),
fairseq, MaxText, OLMo, timm, MMEngine and Keras as of 2026.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.errors import UserError

#: Thousands may be set apart by commas (torchtitan).
_NUMBER: Final = r"(-?\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,12})?|-?\d{1,15}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?)"
#: A count; NeMo's bar prints 32000 as 3.2e+4.
_COUNT: Final = r"(\d{1,15}(?:\.\d{1,6}[eE]\+?\d{1,2})?)(?!\w|\.\d|,\d)"
_IS: Final = r"[\"']?\s{0,20}[=: ]\s{0,20}[\"']?"
#: Settings that are printed once, not where the job is.
_NO_SETTING: Final = "".join(
    f"(?<!{word} )"
    for word in ("total", "max", "warmup", "optimization", "accumulation", "logging", "save", "eval", "per")
)
#: A bar of the training itself: without a name (Trainer), or an epoch's. Bars of downloads and shards have other names.
_BAR: Final = r"(?m)^(?:(?:Epoch|Train|Steps?)[^|\n]{0,40}?:)?[: ]{0,4}\d{1,3}%\|[^|\n]{0,200}\| {0,4}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One wording: `factor` makes base units of the number; `inverse` where it is printed the other way round."""

    text: re.Pattern[bytes]
    factor: float = 1.0
    inverse: bool = False

    def value(self, found: bytes) -> float:
        """The number in base units.

        Raises:
            ValueError: it is none.
        """
        number = float(found.replace(b",", b"")) * self.factor
        if not self.inverse:
            return number
        return 1.0 / number if number else float("inf")


def _pattern(text: str, factor: float = 1.0, *, inverse: bool = False) -> Pattern:
    return Pattern(re.compile(text.encode()), factor, inverse)


STEPS: Final = (
    _pattern(rf"(?i)\b(?=[gcn]){_NO_SETTING}(?:global_?step|current_steps|num_updates){_IS}{_COUNT}"),  # fairseq, NeMo
    _pattern(rf"(?i)\b(?=step|iter){_NO_SETTING}(?:steps?|iteration|iter){_IS}{_COUNT}"),  # Megatron-LM, torchtitan
    _pattern(rf"\btime/batch: {{0,4}}{_COUNT}"),  # Composer
    _pattern(r"\[batch=(\d{1,15})/"),  # Composer
    _pattern(r"(?:Iter|Epoch)\(train\) {1,4}(?:\[\d{1,9}\])?\[ {0,8}(\d{1,15})/"),  # MMEngine
    _pattern(r"\bTrain: {1,4}\d{1,9} \[ {0,8}(\d{1,15})/"),  # timm
    _pattern(_BAR + r"(\d{1,15})/\d{1,15} \["),  # tqdm
    _pattern("(?m)^ {0,8}(\\d{1,15})/\\d{1,15} (?:\\[[=>.]|\u2501)"),  # Keras 2, Keras 3
)
#: Seconds of one step.
TIMES: Final = (
    _pattern(r"(?i)\bstep_time(?:_s|_seconds)?\b[\"']?\s{0,20}[=:]\s{0,20}(\d{1,9}(?:\.\d{1,9})?)(?!\d|\.\d|\s*ms)"),
    _pattern(r"(?i)\bstep_time(?:_ms)?\b[\"']?\s{0,20}[=:]\s{0,20}(\d{1,9}(?:\.\d{1,9})?)\s?ms", 1e-3),
    _pattern(r"(?i)\belapsed time per iteration \(ms\):\s{0,20}(\d{1,9}(?:\.\d{1,9})?)", 1e-3),  # Megatron-LM
    _pattern(r"\btrain_step_timing in s[=:] {0,4}(\d{1,9}(?:\.\d{1,9})?)"),  # NeMo
    _pattern(r"\biter time \(s\): {0,4}(\d{1,9}(?:\.\d{1,9})?)"),  # DeepSpeed
    _pattern(r"\biter \d{1,15}: loss [\d.naif]{1,20}, time (\d{1,9}(?:\.\d{1,9})?)ms", 1e-3),  # nanoGPT
    _pattern(r"\bcompleted step: \d{1,15}, seconds: (\d{1,9}(?:\.\d{1,9})?)"),  # MaxText
    _pattern(r"\(train\)[^\n]{0,200}?\btime: (\d{1,9}(?:\.\d{1,9})?)"),  # MMEngine
    _pattern(r"\bTime: (\d{1,9}(?:\.\d{1,9})?)s,"),  # timm
    _pattern(r"\b(\d{1,9})ms/step\b", 1e-3),  # Keras
    _pattern(_BAR + r"\d{1,15}/\d{1,15} \[[^\n]{0,40}?, {0,4}(\d{1,9}(?:\.\d{1,9})?)it/s", inverse=True),  # tqdm
    _pattern(_BAR + r"\d{1,15}/\d{1,15} \[[^\n]{0,40}?, {0,4}(\d{1,9}(?:\.\d{1,9})?)s/it"),  # tqdm
)
#: Loss of the training; `nan` and `inf` are found as well.
LOSSES: Final = (
    _pattern(
        r"(?i)\b(?=[rtl])(?<!val )(?<!eval )(?<!validation )(?<!test )(?:reduced_|train_|lm_){0,3}loss"
        rf"{_IS}({_NUMBER[1:-1]}|nan|-?inf)(?!\w)"
    ),
    _pattern(rf"\b(?:loss/train/total|train/CrossEntropyLoss)[=:] {{0,4}}({_NUMBER[1:-1]}|nan|-?inf)(?!\w)"),
)
#: Tokens a second, as the job counts them: of all GPUs or of one.
TOKENS: Final = (
    _pattern(rf"(?i)\btokens?(?:/| per |_per_)s(?:ec(?:ond)?)?(?:(?:/| per |_per_)(?:gpu|device))?{_IS}{_NUMBER}"),
    _pattern(rf"\b(?:tps|wps|tgs){_IS}{_NUMBER}"),
    _pattern(rf"(?<![\d.,-])(?=\d){_NUMBER} {{0,2}}tok(?:ens)?/s(?:ec)?\b"),
)


def own(pattern: str, field: str) -> Pattern:
    """A pattern of one's own.

    Raises:
        UserError: it is no regular expression, or has not exactly one group.
    """
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise UserError(field, f"{pattern!r} is no regular expression: {error}") from error
    if compiled.groups != 1:
        raise UserError(field, f"{pattern!r} has {compiled.groups} groups", "put ( ) around the number, and only there")
    return Pattern(compiled)
