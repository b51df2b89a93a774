"""Where a model finds how a step's tokens are split: in vLLM's ``--additional-config``."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from wire.token_split import TOKEN_SPLIT_KEY, TokenSplit


def split_settings(additional_config: Mapping[str, Any] | None) -> TokenSplit:
    """Raises ValueError, naming the key, for an unknown key or a value that can't be."""
    given = (additional_config or {}).get(TOKEN_SPLIT_KEY, {})
    try:
        return TokenSplit.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (TOKEN_SPLIT_KEY, *first["loc"])))
        raise ValueError(f"additional_config.{key}: {first['msg']}") from error
