"""The nano tokenizer: byte-level BPE of 512 entries, trained on a text that ships with the package."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
BOS, EOS, ROLE = "]~!b[", "[e~[", "]~b]"
# Tags that a parser must find in generated text: complete entries, but kept when special tokens are skipped.
TAGS = ("<mm:think>", "</mm:think>", "]<]minimax[>[")
SPECIAL = (BOS, EOS, ROLE)


def read_asset(name: str) -> str:
    """Text of a file that ships beside this module."""
    return files("msa_model.nano").joinpath(name).read_text(encoding="utf-8")


def train_tokenizer() -> Tokenizer:
    """Train from the shipped text. Ids: 0-2 special, then 256 bytes, then merges, 509-511 tags; always the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TAGS),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        # Sorted, as a set has no order of its own.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read_asset("corpus.txt").splitlines(), trainer)
    # Added after training: the trainer makes whatever it is given a special token.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """The bytes that each id stands for; None for special tokens and tags."""
    byte_of = _byte_of_character()
    named = {*SPECIAL, *TAGS}
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return [None if token in named else bytes(byte_of[character] for character in token) for token, _ in entries]


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes are themselves, the others take characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def tokenizer_config() -> dict[str, Any]:
    """What transformers' AutoTokenizer needs beside tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
    }


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(read_asset("chat_template.jinja"), encoding="utf-8")
