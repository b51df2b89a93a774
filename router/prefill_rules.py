"""What a client's body loses on the prefill leg of each API, whose one token is thrown away.

What shapes the prompt stays, and so does what vLLM checks against the vocabulary (logit_bias, bad_words): better
refused before the prompt is computed than after.
"""

from router.body import KV_TRANSFER_PARAMS, PrefillRules

_OWN = (KV_TRANSFER_PARAMS, "stream", "stream_options", "stream_interval")
# Could end the leg in another state than "one token made".
_ENDS = ("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "repetition_detection")

# Chat and completions.
COMPLETIONS_PREFILL = PrefillRules(
    "max_tokens",
    frozenset(
        {
            # how much and how it is sent: the leg has its own
            *_OWN,
            *("max_tokens", "max_completion_tokens", "min_tokens"),
            # several sequences: one prompt needs one prefill
            *("n", "best_of", "use_beam_search"),
            # costs without use: top-k over the vocabulary, the prompt's ids and text in the answer, a compiled grammar
            *("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"),
            *("echo", "return_token_ids", "return_tokens_as_token_ids", "return_prompt_text", "return_token_offsets"),
            *("routed_experts_prompt_start", "structured_outputs", "response_format"),
            *_ENDS,
        }
    ),
)
# The grammar (``text``, ``structured_outputs``) stays: vLLM begins a stream before it looks at it, and then can only
# break off. On this leg, which is no stream, a grammar that does not compile is a plain 400.
RESPONSES_PREFILL = PrefillRules(
    "max_output_tokens",
    frozenset(
        {
            *_OWN,
            *("max_output_tokens", "include", "top_logprobs", "enable_response_messages"),
            *("store", "background"),  # nothing of this leg is to be kept
            *_ENDS,
        }
    ),
)
# ``output_config`` stays, as its effort shapes the prompt; its grammar is seen here for the same reason as above.
MESSAGES_PREFILL = PrefillRules("max_tokens", frozenset({*_OWN, "max_tokens", "stop_sequences"}))
