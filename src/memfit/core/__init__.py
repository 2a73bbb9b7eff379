"""Words that every room shares: frozen dataclasses, the strategy protocol, units and errors. No torch."""
