"""The endpoints. Each file here exposes `router`; `server.app` takes in all of them."""
