"""What a config.json leaves out is the published model (facts M1, M2)."""

from msa_model.config import MSAShape
from msa_model.hf_config import MiniMaxM31FlashConfig
from msa_model.published import NUM_LAYERS, published_quantization, published_values, with_defaults


def test_the_configuration_class_is_the_published_model_where_nothing_is_said() -> None:
    config = MiniMaxM31FlashConfig()
    wanted = {
        "num_hidden_layers": 60,
        "hidden_size": 6144,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "dense_intermediate_size": 12_288,
        "intermediate_size": 3072,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "vocab_size": 200_064,
        "rope_theta": 5e6,
        "rotary_dim": 64,
        "max_position_embeddings": 512 * 1024,
        "moe_layer_freq": [0, 0, 0] + [1] * 57,
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.0,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "swiglu_beta": 1.0,
    }
    assert {key: getattr(config, key) for key in wanted} == wanted
    assert config.head_dim * config.partial_rotary_factor == config.rotary_dim


def test_every_layer_has_an_index_branch_unlike_m3() -> None:
    published = MiniMaxM31FlashConfig(quantization_config=published_quantization())
    shape = MSAShape.from_config(published, 4)
    assert (shape.num_index_layers, shape.num_heads, shape.num_kv_heads, shape.topk_blocks) == (60, 16, 1, 16)


def test_m3s_pattern_is_had_by_configuration() -> None:
    pattern = [0] * 3 + [1] * (NUM_LAYERS - 3)
    sparse = published_values()["sparse_attention_config"]
    sparse |= {"sparse_attention_freq": pattern, "sparse_disable_index_value": pattern}
    config = MiniMaxM31FlashConfig(sparse_attention_config=sparse, quantization_config=published_quantization())
    shape = MSAShape.from_config(config, 4)
    assert shape.dense_layers == {0, 1, 2}
    assert shape.num_index_layers == 57
    assert shape.index_slot(3) == 0


def test_given_values_win_and_copies_are_fresh() -> None:
    assert with_defaults({"vocab_size": 512}).vocab_size == 512
    published_values()["sparse_attention_config"]["sparse_topk_blocks"] = 1
    assert with_defaults({}).sparse_attention_config["sparse_topk_blocks"] == 16


def test_the_class_and_the_preflight_read_a_configuration_alike() -> None:
    config, plain = MiniMaxM31FlashConfig(vocab_size=512), with_defaults({"vocab_size": 512})
    assert {key: getattr(config, key) for key in vars(plain)} == vars(plain)
