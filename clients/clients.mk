# Real, unmodified agents against `stoker serve` with the demo model. They come from npm into .clients/ and run offline.

CLIENTS := .clients
OPENCODE := 1.18.33

.PHONY: clients client-opencode

clients: client-opencode ## run real agents (OpenCode) against Stoker with the demo model; needs npm

client-opencode: $(CLIENTS)/opencode/.done $(DEV)
	$(BIN)/python -m clients.opencode --install $(CLIENTS)/opencode $(ARGS)

# Install scripts are not needed: the program itself is inside the package of its platform.
$(CLIENTS)/opencode/.done:
	mkdir -p $(@D)
	npm install --prefix $(@D) --ignore-scripts --no-audit --no-fund opencode-ai@$(OPENCODE)
	touch $@
