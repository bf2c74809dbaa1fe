"""The proxy: speaks the MongoDB wire protocol and routes each command to the tier that provably answers it."""
