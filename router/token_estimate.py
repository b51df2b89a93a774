"""How many tokens a request is taken to cost; the router has no tokeniser."""

from router.context import Plan

# The usual rule of thumb for English text and large byte-pair vocabularies (OpenAI's help pages). Other scripts and
# code have more tokens to a byte, the JSON around the text has none that count: good enough for sharing, and no bill.
BYTES_PER_TOKEN = 4
# For clients that set no limit. Public traces of chat have answers of 129 tokens in the median (Splitwise, 2023);
# this is four times that.
UNLIMITED_OUTPUT_TOKENS = 512
# More than any model's context, should a limit be no more than a big number.
MAX_OUTPUT_TOKENS = 1 << 20


def estimate_tokens(num_body_bytes: int, plan: Plan) -> tuple[int, int]:
    """What a request costs prefill, and what decode: the prompt, and with all that may come to be made of it."""
    prompt = num_body_bytes // BYTES_PER_TOKEN + 1
    limit = plan.max_tokens
    if limit is None:
        limit = UNLIMITED_OUTPUT_TOKENS
    elif limit > MAX_OUTPUT_TOKENS:
        limit = MAX_OUTPUT_TOKENS
    return prompt, prompt + plan.num_choices * limit
