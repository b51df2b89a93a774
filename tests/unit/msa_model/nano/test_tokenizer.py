"""The nano tokenizer is loaded offline by transformers and loses nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from msa_model.nano.tokenizer import BOS, EOS, ROLE, TAGS, token_bytes, train_tokenizer, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, train_tokenizer())
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_survives_a_round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_has_512_entries_and_special_tokens_at_known_ids(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer) == 512
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert [tokenizer.convert_tokens_to_ids(token) for token in (BOS, EOS, ROLE, *TAGS)] == [0, 1, 2, 509, 510, 511]


def test_markers_are_single_tokens_inside_text(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode(f"a{ROLE}b{EOS}<mm:think>c</mm:think>]<]minimax[>[<tool_call>")
    assert {1, 2, 509, 510, 511} <= set(ids)


def test_special_tokens_are_skipped_and_tags_are_not(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("<mm:think>why</mm:think>so[e~[")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<mm:think>why</mm:think>so"


def test_english_is_shorter_in_tokens_than_in_bytes(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "The river goes down to the sea, and the children watch the water."
    assert len(tokenizer.encode(text)) < len(text) / 2


def test_every_id_but_the_named_ones_stands_for_bytes(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = token_bytes(train_tokenizer())
    assert [i for i, text in enumerate(texts) if text is None] == [0, 1, 2, 509, 510, 511]
    single = {text for text in texts if text is not None and len(text) == 1}
    assert single == {bytes([byte]) for byte in range(256)}
    known = tokenizer.encode("water")
    assert b"".join(texts[i] or b"" for i in known) == b"water"


def test_training_is_deterministic() -> None:
    assert train_tokenizer().to_str() == train_tokenizer().to_str()
