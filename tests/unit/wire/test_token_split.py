"""What may be split is checked where it is set."""

import pytest
from pydantic import ValidationError

from wire.token_split import TokenSplit


def test_nothing_is_split_unless_asked_for() -> None:
    assert not TokenSplit().is_on
    TokenSplit().check_ranks(1, 8)


@pytest.mark.parametrize("key", ["enable_sp", "enable_dbo"])
def test_one_rank_has_nothing_to_exchange(key: str) -> None:
    split = TokenSplit.model_validate({key: True})
    split.check_ranks(2, 1)
    with pytest.raises(ValueError, match=rf"token_split\.{key} needs tp_size > 1"):
        split.check_ranks(1, 1)
    with pytest.raises(ValueError, match=rf"token_split\.{key} needs dp_size = 1"):
        split.check_ranks(2, 2)


@pytest.mark.parametrize("wrong", [{"sp_exchange": "fp4"}, {"dbo_min_tokens": 1}, {"enable_tbo": True}])
def test_what_can_not_be_is_refused_with_its_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        TokenSplit.model_validate(wrong)
