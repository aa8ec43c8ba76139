"""A config.json -> one family's typed configuration; whatever the family does not do is refused by name.

Names and meaning are those of Hugging Face's config.json.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from stoker.models.graphs.rotary import spelled_anew
from stoker.models.source import ModelError

T = TypeVar("T", bound=msgspec.Struct)

# keys that no graph reads: names, training, generation, and what the library's base class writes into every file
_INERT = {
    "_name_or_path", "add_cross_attention", "architectures", "attention_dropout", "auto_map", "aux_loss_alpha",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "ep_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length",
    "max_position_embeddings", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_token_id", "prefix", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty",
    "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "seq_aux", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed",
    "unsloth_version", "use_bfloat16", "use_cache",
}  # fmt: skip


def parse(
    config: Mapping[str, Any],
    kind: type[T],
    where: str,
    *,
    defaults: Mapping[str, object],
    fixed: Mapping[str, object],
    inert: Collection[str] = (),
) -> T:
    """`defaults` are for keys that are absent or null, `fixed` what a key must say if it is there, `inert` more keys
    that change nothing. Raises ModelError naming what is missing, malformed or not supported."""
    values = spelled_anew(config)
    for key, value in fixed.items():
        if values.pop(key, value) not in (value, None):
            raise ModelError(f"{where}: {key} is supported as {value!r} only")
    for key, value in defaults.items():
        if values.get(key) is None:
            values[key] = value
    for key, value in values.items():
        if key not in kind.__struct_fields__ and key not in _INERT and key not in inert and value not in (None, False):
            raise ModelError(f"{where}: the {config.get('model_type')} graph does not support {key} = {value!r}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: the model's configuration is not usable: {error}") from error
