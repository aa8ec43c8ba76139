# Real, unmodified agents against Stoker. They come from npm into .clients/ and run offline.

CLIENTS := .clients
OPENCODE := 1.18.33
CODEX := 0.171.0
CLAUDE := 2.1.197

.PHONY: clients client-opencode client-codex client-claude

clients: client-opencode client-codex client-claude ## run real agents (OpenCode, Codex, Claude Code) against Stoker; needs npm

client-opencode: $(CLIENTS)/opencode/.done $(DEV)
	$(BIN)/python -m clients.tool_turn --install $(CLIENTS)/opencode opencode
	$(BIN)/python -m clients.opencode --install $(CLIENTS)/opencode $(ARGS)

client-codex: $(CLIENTS)/codex/.done $(DEV)
	$(BIN)/python -m clients.tool_turn --install $(CLIENTS)/codex codex

client-claude: $(CLIENTS)/claude/.done $(DEV)
	$(BIN)/python -m clients.tool_turn --install $(CLIENTS)/claude claude

# Install scripts are not needed: the programs themselves are inside the packages of their platform.
$(CLIENTS)/opencode/.done: PACKAGE := opencode-ai@$(OPENCODE)
$(CLIENTS)/codex/.done: PACKAGE := @openai/codex@$(CODEX)
$(CLIENTS)/claude/.done: PACKAGE := @anthropic-ai/claude-code@$(CLAUDE)

$(CLIENTS)/%/.done:
	mkdir -p $(@D)
	npm install --prefix $(@D) --ignore-scripts --no-audit --no-fund $(PACKAGE)
	touch $@
