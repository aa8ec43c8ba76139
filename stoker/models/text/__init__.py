"""Tokens <-> meaning without torch: tokenizer, chat template, detokenizer."""
