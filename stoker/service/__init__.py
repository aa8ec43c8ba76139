"""The one request pipeline: render -> count -> generate -> detokenize and parse -> account. Never imports torch."""
