"""The model reads its setting where vLLM lets it through, and names the key of what it can't read."""

import pytest

from msa_model.split_settings import split_settings
from wire.token_split import TOKEN_SPLIT_KEY


@pytest.mark.parametrize("additional", [None, {}, {"other": 1}])
def test_without_a_setting_nothing_is_split(additional: dict[str, int] | None) -> None:
    assert not split_settings(additional).is_on


def test_a_setting_is_read() -> None:
    assert split_settings({TOKEN_SPLIT_KEY: {"enable_sp": True, "sp_exchange": "exact"}}).sp_exchange == "exact"


@pytest.mark.parametrize("wrong", [{"sp_exchange": "fp4"}, {"enable_tbo": True}])
def test_a_wrong_setting_is_refused_with_its_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"additional_config\.{TOKEN_SPLIT_KEY}\.{next(iter(wrong))}"):
        split_settings({TOKEN_SPLIT_KEY: wrong})
